"""The sentences of a study and of its comparisons agree with the numbers that they are made of."""

from dataclasses import replace

import pytest

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison
from levelfield.analysis.results import ResultRow
from levelfield.analysis.verdict import (
    CAVEAT,
    OTHER_HALVES,
    OTHER_SEARCHES,
    SEEDS_ONLY,
    in_words,
    verdict,
    verdict_lines,
)
from levelfield.core.configuration import merge
from levelfield.study.spec import StudySpec, is_baseline

SPREAD = (-0.002, -0.001, 0.0, 0.001, 0.002)  # mean 0; t(4) = 2.776: half an interval of 0.196 points


def row(method: str, run: int, value: float) -> ResultRow:
    return ResultRow(method, "test", None, run, 0, "separated", "map_at_r", value)


def rows_of(means: dict[str, float], runs: int = 5) -> list[ResultRow]:
    # Each method's runs in another order, so that the paired differences vary too.
    found = [row("pretrained", 0, 0.2)]
    for turn, (method, mean) in enumerate(means.items()):
        found += [row(method, run, mean + SPREAD[(run + turn) % 5]) for run in range(runs)]
    return found


@pytest.fixture
def three(spec: StudySpec) -> StudySpec:
    methods = dict.fromkeys(("arcface", "contrastive", "triplet"), spec.methods["arcface"])
    return replace(spec, folds=1, runs=5, methods=methods, references=["features", "lda"], spaces={})


# The mean of each row, and what the sentences say. Half a t-interval of the runs: 2.776 x 0.158 / sqrt(5) = 0.196.
VERDICTS = {
    "arcface=0.4 contrastive=0.3 triplet=0.4005": """
        triplet has the highest MAP@R on unseen classes, 40.0 ± 0.2 percent
        ArcFace may be as good
        Training pays: triplet is 20.0 points above the best untrained row (features, PCA to
        3 of 3 methods are significantly above it.""",
    "arcface=0.24 contrastive=0.1 triplet=0.1 pretrained[lda]=0.25 pretrained[features]=0.23": """
        ArcFace has the best MAP@R
        significantly above all 2 other methods.
        Training does not pay: ArcFace is 1.0 points below the best untrained row (LDA). 3 of 3 methods
        are significantly below it.""",
    "arcface=0.2501 contrastive=0.1 triplet=0.1 pretrained[lda]=0.25": """
        Training brings no significant gain: ArcFace is 0.01 points above
        2 of 3 methods are significantly below it.""",
    # The mean of two searches of a method, and a second search of one, which is no method of its own.
    "arcface=0.42 arcface@2=0.3 contrastive=0.38 contrastive@2=0.37": """
        contrastive has the highest MAP@R on unseen classes, 37.5 percent
        contrastive is 17.5 points above""",
    "arcface=0.41 contrastive=0.3 triplet=0.2 arcface@2=0.412": """
        ArcFace has the best MAP@R on unseen classes, 41.1 percent, significantly above all 2
        Training pays: ArcFace is 21.1 points""",
    # The splits of a sweep. Of the six gains of the second one, t(4) = 0.23 / (0.158 / sqrt(5)) = 3.3 is too small.
    "arcface[0]=0.3 contrastive[0]=0.25 arcface[1]=0.4 contrastive[1]=0.35": """
        ArcFace[1] has the best MAP@R on unseen classes, 40.0 ± 0.2 percent, significantly above the other method.""",
    "arcface[0]=0.4 arcface[1]=0.2001 arcface[2]=0.2002 arcface[3]=0.2003 arcface[4]=0.2004 arcface[5]=0.2005 "
    "pretrained[pca-0]=0.3977 " + " ".join(f"pretrained[pca-{seed}]=0.2" for seed in range(1, 6)): """
        Training brings no significant gain: ArcFace[0] is 0.2 points above""",
}


@pytest.mark.parametrize("scores", VERDICTS)
def test_the_best_method_what_cannot_be_told_from_it_and_whether_training_pays(scores: str, three: StudySpec) -> None:
    means = {name: float(mean) for name, _, mean in (word.partition("=") for word in scores.split())}
    trained = {name: mean for name, mean in means.items() if not is_baseline(name)}
    rows = [*rows_of(trained), *(row(name, 0, means[name]) for name in means.keys() - trained)]
    study = replace(three, methods=dict.fromkeys(trained, three.methods["arcface"]))
    if "[0]" in scores:  # each method on the random split of the number in its name
        splits = {name: {"data": {"split": "random", "split_seed": int(name[-2])}} for name in trained}
        methods = {name: merge(three.methods["arcface"], split) for name, split in splits.items()}
        study = replace(study, methods=methods, references=[], sweep=["data.split_seed"])
    said = " ".join(verdict(rows, study))
    assert [line for line in VERDICTS[scores].split("\n") if line.strip() not in said] == []


def test_what_the_intervals_cover_is_said(three, spec):
    rows = rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.35})
    searched = replace(three, spaces={"triplet": spec.spaces["arcface"]})
    assert searched.trials("triplet") > 0
    assert verdict(rows, searched) == [*verdict(rows, three), SEEDS_ONLY]
    assert verdict_lines(rows, searched)[-1] == SEEDS_ONLY
    twice = replace(searched, methods={**searched.methods, "triplet@2": searched.methods["triplet"]})
    few, repeated = replace(searched, runs=2), replace(twice, replicates=3)  # two runs have no intervals
    for each, words in ((three, CAVEAT), (twice, OTHER_SEARCHES), (few, CAVEAT), (repeated, OTHER_HALVES)):
        assert verdict_lines(rows, each)[-1] == words
        assert SEEDS_ONLY not in verdict(rows, each)


def test_each_pair_has_a_sentence_and_so_have_too_few_runs_no_scores_and_equal_ones(three: StudySpec) -> None:
    means = {"arcface": 0.4, "contrastive": 0.35, "triplet": 0.2}
    *sentences, caveat = verdict_lines(rows_of(means)[1:], three)
    assert ([" is significantly better than " in each for each in sentences], caveat) == ([True] * 3, CAVEAT)
    second, first, *_ = verdict(rows_of(means, runs=1), three)
    assert "too few runs" in first
    assert second.startswith("Training may pay: ArcFace is 19.8 points above")
    assert second.endswith("2 of 3 methods end above it.")
    assert verdict([], three) == ["No method has test scores yet."]
    equal = [row(method, run, 0.4 + SPREAD[run]) for method in three.methods for run in range(5)]
    best = verdict([row("pretrained", 0, 0.2), *equal], three)[1]
    assert best.endswith("40.0 ± 0.2 percent, with the same score in every run.")
    unsure = [*rows_of({"contrastive": 0.35}), *(row("arcface", run, 0.5 + 200 * SPREAD[run]) for run in range(5))]
    assert verdict(unsure, three)[0].startswith("Training may pay: ArcFace is 30.0 points above the best untrained row")


def compared(difference: float, low: float | None, high: float | None, p: float | None = None, **other) -> Comparison:
    """Amounts in points."""
    low, high = (None if end is None else end / 100 for end in (low, high))
    fields = {"kind": PAIR, "method": "arcface", "other": "contrastive", "family": 91, "n": 10, "p": p, "p_holm": p}
    fields |= {"metric": "map_at_r", "embedding": "separated", "difference": difference / 100}
    return Comparison(low=low, high=high, **fields | other)


BASE = {"kind": OVER_BASELINE, "other": "pretrained"}
AGAIN = {"kind": SECOND_SEARCH, "method": "arcface@2", "other": "arcface", "p_holm": None}
SENTENCES = [
    (compared(0.4, -0.1, 0.9, 0.11), "arcface is not significantly better than contrastive|+0.4 points|-0.1 to +0.9"),
    (compared(-1.2, -1.9, -0.5, 0.0026), "contrastive is significantly better|+0.5 to +1.9|p = 0.002 over 91"),
    (compared(1.2, 0.5, 1.9, 0.41), "arcface is not significantly better|+0.5 to +1.9|p = 0.410 over 91"),
    (compared(-3, -4, -2, 1e-9, **BASE), "arcface is significantly worse|-3.0 points|-4.0 to -2.0|p < 0.001"),
    (compared(0.4, None, None, n=2), "arcface over contrastive: +0.4 points MAP@R|too few runs"),
    (compared(0, None, None, n=3), "+0.0 points MAP@R|all 3 runs"),
    (compared(-0.6, -1.4, 0.2, 0.1, **AGAIN), "arcface and arcface@2|0.6 points|-0.2 to +1.4"),
    # A p just below the level does not read as the level, and an end close to zero shows its side.
    (compared(0.4, 0.1, 0.7, 0.04999), "is significantly better|p = 0.049"),
    (compared(0.4, 0.1, 0.7, 0.05), "is not significantly better|p = 0.050"),
    (compared(0.42, 0.04, 0.8, 0.03), "+0.42 points MAP@R, 95% interval +0.04 to +0.80"),
    (compared(0.42, -0.004, 0.84, 0.06), "95% interval -0.004 to +0.840"),
    (compared(0.4, 0.1, 0.7, 0.01, over="replicates"), "95% interval over replicates +0.1 to +0.7"),
]


@pytest.mark.parametrize(("comparison", "parts"), SENTENCES)
def test_sentences_have_the_better_method_first_and_the_numbers(comparison: Comparison, parts: str) -> None:
    assert [part for part in parts.split("|") if part not in in_words(comparison)] == []
    assert "-0.0 points" not in in_words(compared(-0.003, -1, 1, 0.9, kind=OVER_BASELINE))
