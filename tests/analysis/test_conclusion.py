"""The verdict of a study in a few sentences, from rows of which the answer is known."""

from dataclasses import replace

import pytest

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, compare_all
from levelfield.analysis.results import ResultRow, mean_scores
from levelfield.analysis.verdict import SEEDS_ONLY, baselines_of, verdict, verdict_lines
from levelfield.core.configuration import merge
from levelfield.study.spec import StudySpec

SPREAD = (-0.002, -0.001, 0.0, 0.001, 0.002)  # mean 0; t(4) = 2.776: half an interval of 0.196 points


def row(method: str, run: int, value: float) -> ResultRow:
    return ResultRow(method, "test", None, run, 0, "separated", "map_at_r", value)


def rows_of(means: dict[str, float], runs: int = 5) -> list[ResultRow]:
    # Each method's runs in another order, so that the paired differences vary too.
    found = [row("pretrained", 0, 0.2)]
    for turn, (method, mean) in enumerate(means.items()):
        found += [row(method, run, mean + SPREAD[(run + turn) % 5]) for run in range(runs)]
    return found


def halved(methods: list[str], spec: StudySpec) -> StudySpec:
    """Methods, each on the random split of the number in its name."""
    config = spec.methods["arcface"]
    splits = {name: {"data": {"split": "random", "split_seed": int(name[-2])}} for name in methods}
    rows = {name: merge(config, split) for name, split in splits.items()}
    return replace(spec, methods=rows, references=[], sweep=["data.split_seed"])


@pytest.fixture
def three(spec: StudySpec) -> StudySpec:
    config = spec.methods["arcface"]
    methods = dict.fromkeys(("arcface", "contrastive", "triplet"), config)
    return replace(spec, folds=1, runs=5, methods=methods, references=["features", "lda"], spaces={})


def test_the_best_method_what_cannot_be_told_from_it_and_whether_training_pays(three: StudySpec) -> None:
    second, first = verdict(rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.4005}), three)
    # Half a t-interval of the runs: 2.776 x 0.158 / sqrt(5) = 0.196.
    assert first.startswith("triplet has the highest MAP@R")
    assert "40.0 ± 0.2 percent" in first
    assert "ArcFace may be as good" in first
    assert "ontrastive" not in first
    assert second.startswith("Training pays: triplet is 20.0 points above the best untrained row (features, PCA to")
    assert second.endswith("3 of 3 methods are significantly above it.")  # 40.05 - 20.0


def test_one_search_of_each_method_is_said_and_fixed_settings_or_second_searches_say_nothing_new(three, spec):
    rows = rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.35})
    searched = replace(three, spaces={"triplet": spec.spaces["arcface"]})
    assert searched.trials("triplet") > 0
    assert verdict(rows, searched) == [*verdict(rows, three), SEEDS_ONLY]
    assert verdict_lines(rows, searched)[-1] == SEEDS_ONLY
    twice = replace(searched, methods={**searched.methods, "triplet@2": searched.methods["triplet"]})
    few = replace(searched, runs=2)  # no intervals
    for each in (three, twice, few):
        assert SEEDS_ONLY not in [*verdict(rows, each), *verdict_lines(rows, each)]


def test_training_that_makes_it_worse_than_the_best_row_without(three: StudySpec) -> None:
    untrained = [row("pretrained[lda]", 0, 0.25), row("pretrained[features]", 0, 0.23)]
    second, first = verdict([*rows_of({"arcface": 0.24, "contrastive": 0.1, "triplet": 0.1}), *untrained], three)
    assert first.startswith("ArcFace has the best MAP@R")
    assert first.endswith("significantly above all 2 other methods.")
    assert second == (
        "Training does not pay: ArcFace is 1.0 points below the best untrained row (LDA). "
        "3 of 3 methods are significantly below it."
    )


def test_a_gain_within_the_noise_is_none(three: StudySpec) -> None:
    rows = [*rows_of({"arcface": 0.2501, "contrastive": 0.1, "triplet": 0.1}), row("pretrained[lda]", 0, 0.25)]
    sentence = verdict(rows, three)[0]
    assert sentence.startswith("Training brings no significant gain: ArcFace is 0.01 points above")
    assert sentence.endswith("2 of 3 methods are significantly below it.")


def test_rows_of_another_split_are_neither_compared_nor_an_opponent(three: StudySpec) -> None:
    means = {"arcface[0]": 0.3, "contrastive[0]": 0.25, "arcface[1]": 0.4, "contrastive[1]": 0.35}
    swept = replace(halved([*means], three), sweep=[])
    _, first = verdict([*rows_of(means)[1:], row("pretrained", 0, 0.2)], swept)
    assert first.startswith("ArcFace[1] has the best MAP@R on unseen classes, 40.0 ± 0.2 percent")
    assert first.endswith("above the other method.")
    found = compare_all(rows_of(means), list(means), halves=swept.halves)
    pairs = [(each.method, each.other) for each in found if each.kind == PAIR]
    assert pairs == [("arcface[0]", "contrastive[0]"), ("arcface[1]", "contrastive[1]")]


def test_too_few_runs_and_no_opening(three: StudySpec) -> None:
    second, first, *_ = verdict(rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.2}, runs=1), three)
    assert "too few runs" in first
    assert second.startswith("Training may pay: ArcFace is 19.8 points above")
    assert second.endswith("2 of 3 methods end above it.")
    assert verdict([], three) == ["No method has test scores yet."]


def test_equal_scores_of_many_runs_are_not_too_few_runs(three: StudySpec) -> None:
    found = [row(method, run, 0.4 + SPREAD[run]) for method in three.methods for run in range(5)]
    assert verdict([row("pretrained", 0, 0.2), *found], three)[1].endswith(
        "40.0 ± 0.2 percent, with the same score in every run."
    )


def test_a_second_search_is_no_method_of_its_own(three: StudySpec) -> None:
    twice = replace(three, methods={**three.methods, "arcface@2": three.methods["arcface"]})
    rows = rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.2, "arcface@2": 0.5})
    second, first, *_ = verdict(rows, twice)
    assert first.startswith("ArcFace has the best MAP@R on unseen classes, 40.0")
    assert first.endswith("above all 2 other methods.")
    assert second.startswith("Training pays: ArcFace is 20.0 points")


def test_a_row_of_another_split_takes_no_part_in_the_correction(three: StudySpec) -> None:
    """Each row is compared with the untrained row of its own test classes, as on the page."""
    swept = halved([f"arcface[{seed}]" for seed in range(6)], three)
    rows = rows_of({"arcface[0]": 0.4, **{f"arcface[{seed}]": 0.2 + 0.0001 * seed for seed in range(1, 6)}})[1:]
    rows += [row(f"pretrained[pca-{seed}]", 0, 0.3977 if seed == 0 else 0.2) for seed in range(6)]
    baselines = baselines_of(mean_scores(rows), swept)
    found = compare_all(rows, list(swept.methods), baselines=baselines, halves=swept.halves)
    (over,) = (each for each in found if each.kind == OVER_BASELINE and each.method == "arcface[0]")
    assert over.p < 0.05 < over.p_holm  # t(4) = 0.23 / (0.158 / sqrt(5)) = 3.3; the other five gain nothing
    assert verdict(rows, swept)[0].startswith("Training brings no significant gain: ArcFace[0] is 0.2 points above")
