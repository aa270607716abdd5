"""What a study says to a practitioner, from scores whose answer is known."""

import numpy as np
import pytest
from scipy import stats

from levelfield.analysis.conclusion import best_method, conclusion_lines
from levelfield.analysis.results import ResultRow
from levelfield.study.definition.spec import StudySpec

FOLDS, RUNS = 2, 6
MEANS = {"arcface": 0.30, "ntxent": 0.301, "contrastive": 0.20}


@pytest.fixture(scope="module")
def rows() -> list[ResultRow]:
    rng = np.random.default_rng(0)
    scored = {name: mean + rng.normal(0, 0.004, (RUNS, FOLDS)) for name, mean in MEANS.items()}
    scored |= {"pretrained": np.full((1, FOLDS), 0.25), "pretrained[lda]": np.full((1, FOLDS), 0.35)}
    return [
        ResultRow(name, "test", None, run, fold, "separated", "map_at_r", float(scores[run, fold]))
        for name, scores in scored.items()
        for run in range(len(scores))
        for fold in range(FOLDS)
    ]


def spec() -> StudySpec:
    methods = {name: {"model": {}, "data": {}, "trainer": {}} for name in MEANS}
    return StudySpec(name="toy", folds=FOLDS, runs=RUNS, seed=0, threads=1, methods=methods, references=["lda"])


def test_the_best_stands_beside_each_row_without_training_and_those_level_with_it(rows: list[ResultRow]) -> None:
    runs = {name: [np.mean([r.value for r in rows if (r.method, r.run) == (name, run)]) for run in range(RUNS)]
            for name in MEANS}  # fmt: skip
    best = max(runs, key=lambda name: np.mean(runs[name]))
    assert best_method(rows, spec()) == best
    lines = conclusion_lines(rows, spec())
    over, below = lines[1:3]
    gain = np.mean(runs[best]) - 0.25
    low, high = stats.t.interval(0.95, RUNS - 1, gain, stats.sem(runs[best]))
    assert f"{best} over pretrained: {100 * gain:+.1f} points MAP@R" in over
    assert f"95% interval {100 * low:+.1f} to {100 * high:+.1f}" in over
    assert f"{best} is better" in over
    assert f"{best} over pretrained[lda]: {100 * (np.mean(runs[best]) - 0.35):+.1f} points" in below
    assert f"{best} is worse" in below
    other = "arcface" if best == "ntxent" else "ntxent"
    assert (
        stats.ttest_rel(runs[best], runs[other]).pvalue
        > 0.05
        > 3 * stats.ttest_rel(runs[best], runs["contrastive"]).pvalue
    )
    assert lines[-1] == f"  no difference from it is shown for {other}"
