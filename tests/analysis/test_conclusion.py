"""What a study says to a practitioner, from scores whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from levelfield.analysis.conclusion import decide, decision_lines, kind_of
from levelfield.analysis.results import ResultRow
from levelfield.study.spec import StudySpec

FOLDS, RUNS = 2, 6
CONFIG = {"model": {}, "data": {}, "trainer": {}}
PCA, FEATURES, LDA = "pretrained", "pretrained[features]", "pretrained[lda]"


def spec(*methods: str) -> StudySpec:
    return StudySpec(
        name="toy",
        folds=FOLDS,
        runs=RUNS,
        seed=0,
        threads=1,
        methods=dict.fromkeys(methods, CONFIG),
        references=["features", "lda"],
    )


def rows_of(scores: dict[str, np.ndarray]) -> list[ResultRow]:
    """`scores`: row to MAP@R and P@1, (2, runs, folds)."""
    return [
        ResultRow(row, "test", None, run, fold, "separated", metric, float(of_metric[run, fold]))
        for row, both in scores.items()
        for metric, of_metric in zip(("map_at_r", "precision_at_1"), both, strict=True)
        for run in range(of_metric.shape[0])
        for fold in range(of_metric.shape[1])
    ]


def planted(percent: dict[str, tuple[float, float]]) -> list[ResultRow]:
    """MAP@R and P@1 of each row in percent, the same in all runs and folds."""
    return rows_of({row: np.array(both).reshape(2, 1, 1) / 100 for row, both in percent.items()})


# The features have 30 MAP@R and 80 P@1 throughout; then what the row to use is, and the row on which the two disagree.
@pytest.mark.parametrize(
    ("scores", "row", "disputed"),
    [
        ({PCA: (29, 79), LDA: (20, 60), "arcface": (33, 82), "ntxent": (31, 85)}, "arcface", None),
        ({PCA: (29, 79), LDA: (20, 60), "arcface": (24, 79), "ntxent": (28, 76)}, FEATURES, None),
        ({PCA: (29.1, 79.1), LDA: (20, 60), "arcface": (24, 79), "ntxent": (28, 76)}, PCA, None),
        ({PCA: (28.9, 79.9), LDA: (20, 60), "arcface": (24, 79), "ntxent": (28, 76)}, FEATURES, None),
        ({PCA: (29.9, 78.9), LDA: (20, 60), "arcface": (24, 79), "ntxent": (28, 76)}, FEATURES, None),
        ({PCA: (30.2, 80.1), LDA: (20, 60), "arcface": (24, 79), "ntxent": (28, 76)}, PCA, None),
        ({PCA: (30.2, 80.1), LDA: (20, 60), "arcface": (30.1, 83), "ntxent": (28, 76)}, PCA, None),
        ({PCA: (20, 70), LDA: (20, 60), "arcface": (35, 79), "ntxent": (28, 76)}, FEATURES, "arcface"),
        ({PCA: (20, 70), LDA: (20, 60), "arcface": (35, 79), "ntxent": (31, 81)}, "ntxent", "arcface"),
        ({PCA: (20, 70), LDA: (20, 60), "arcface": (29, 82), "ntxent": (29.5, 79)}, FEATURES, "arcface"),
        ({PCA: (20, 70), LDA: (40, 90), "arcface": (35, 85), "ntxent": (28, 76)}, LDA, None),
        ({PCA: (20, 70), LDA: (40, 79), "arcface": (35, 85), "ntxent": (28, 76)}, "arcface", None),
        ({PCA: (20, 70), LDA: (20, 60), "arcface": (30, 80), "ntxent": (28, 76)}, FEATURES, None),
        ({PCA: (20, 70), LDA: (20, 60), "arcface": (31, 80), "ntxent": (28, 76)}, "arcface", None),
    ],
)
def test_the_row_to_use(scores: dict[str, tuple[float, float]], row: str, disputed: str | None) -> None:
    rows, of = planted({FEATURES: (30, 80), **scores}), spec("arcface", "ntxent")
    decision = decide(rows, of)
    assert (decision.row, decision.features, decision.disputed) == (row, FEATURES, disputed)
    for name, (map_at_r, precision) in scores.items():
        expected = {"map_at_r": (map_at_r - 30) / 100, "precision_at_1": (precision - 80) / 100}
        assert decision.gains[name] == pytest.approx(expected)
    first = decision_lines(decision, rows, of, {PCA: (1280, 128)})[0]
    named = [*([row] if row != FEATURES else []), *([disputed] if disputed else [])]
    for name in named:
        loses_only = name == PCA and min(decision.gains[PCA].values()) < 0
        for gain in decision.gains[name].values():
            assert f"{100 * gain:+.1f}".lstrip("-" if loses_only else "") in first, (name, first)
        assert name in first
    assert ("128 " in first and "1,280 " in first) == (row == PCA)
    assert "significant" not in first, "one run is too few"


def test_of_several_trunks_a_method_is_compared_with_the_features_of_each() -> None:
    methods = {f"arcface[{name}]": {**CONFIG, "model": {"trunk": name}} for name in ("a", "b")}
    of = replace(spec(), methods=methods, sweep=["model.trunk"])
    untrained = {
        "pretrained[features-a]": (30, 80),
        "pretrained[features-b]": (35, 79),
        "pretrained[pca-a]": (20, 70),
        "pretrained[pca-b]": (30, 70),
    }
    above_its_own = {"arcface[a]": (34, 90), "arcface[b]": (36, 79.5)}
    decision = decide(planted({**untrained, **above_its_own}), of)
    assert (decision.row, kind_of(decision.row, of)) == ("pretrained[features-b]", "features")
    decision = decide(planted({**untrained, **above_its_own, "arcface[b]": (36, 80.5)}), of)
    assert (decision.row, decision.features) == ("arcface[b]", "pretrained[features-b]")
    assert decision.gains["arcface[b]"]["map_at_r"] == pytest.approx(0.01)


@pytest.fixture(scope="module")
def noisy() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    means = {"arcface": (0.30, 0.70), "ntxent": (0.301, 0.69), "contrastive": (0.20, 0.60)}
    noise = {name: rng.normal(0, 0.004, (2, RUNS, FOLDS)) for name in means}
    scores = {name: np.array(both)[:, None, None] + noise[name] for name, both in means.items()}
    untrained = {PCA: (0.28, 0.68), FEATURES: (0.25, 0.697), LDA: (0.2, 0.5)}
    return scores | {row: np.full((1, FOLDS, 2), both).transpose(2, 0, 1) for row, both in untrained.items()}


def test_how_surely_the_method_differs_from_the_features(noisy: dict[str, np.ndarray]) -> None:
    of, rows = spec("arcface", "ntxent", "contrastive"), rows_of(noisy)
    decision = decide(rows, of)
    assert decision.row == "arcface", "ntxent is below the features in P@1"
    first, _, *over_features, level = decision_lines(decision, rows, of, {PCA: (1280, 128)})
    p = []
    for line, both, untouched in zip(over_features, noisy["arcface"], (0.25, 0.697), strict=True):
        runs = both.mean(axis=1) - untouched
        low, high = stats.t.interval(0.95, RUNS - 1, runs.mean(), stats.sem(runs))
        assert f"arcface over {FEATURES}: {100 * runs.mean():+.1f}" in line
        assert f"95% interval {100 * low:+.1f} to {100 * high:+.1f}" in line
        p.append(stats.ttest_1samp(runs, 0).pvalue)
    assert 3 * p[0] < 0.05 < p[1]
    significance = first[first.index(";") : first.index(".", first.index(";"))]
    assert ("MAP@R" in significance, "P@1" in significance) == (True, False)
    paired = [noisy["arcface"][0].mean(axis=1) - noisy[other][0].mean(axis=1) for other in ("ntxent", "contrastive")]
    assert stats.ttest_1samp(paired[0], 0).pvalue > 0.05 > 3 * stats.ttest_1samp(paired[1], 0).pvalue
    assert level.endswith(": ntxent")
