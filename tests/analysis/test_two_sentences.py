"""The verdict of a study in two sentences, from rows of which the answer is known."""

from dataclasses import replace

import pytest

from levelfield.analysis.conclusion import two_sentences
from levelfield.analysis.results import ResultRow
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


@pytest.fixture
def three(spec: StudySpec) -> StudySpec:
    config = spec.methods["arcface"]
    methods = dict.fromkeys(("arcface", "contrastive", "triplet"), config)
    return replace(spec, folds=1, runs=5, methods=methods, references=["features", "lda"])


def test_the_best_method_what_cannot_be_told_from_it_and_whether_training_pays(three: StudySpec) -> None:
    first, second = two_sentences(rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.4005}), three)
    assert first == (
        "On unseen classes triplet has the highest MAP@R, 40.0 ± 0.2 percent; it is shown to be better than 1 of 2 "
        "others, and no difference from arcface is shown."
    )
    # 40.05 - 20.0, and half a t-interval of the runs: 2.776 x 0.158 / sqrt(5) = 0.196.
    assert second.startswith("Training pays: +20.0 points MAP@R over pretrained, 95% interval +19.9 to +20.2 (Holm's p")


def test_training_that_makes_it_worse_and_a_reference_that_is_better(three: StudySpec) -> None:
    rows = [*rows_of({"arcface": 0.15, "contrastive": 0.1, "triplet": 0.1}), row("pretrained[lda]", 0, 0.25)]
    first, second = two_sentences(rows, three)
    assert first.endswith("and is shown to be better than all 2 others.")
    assert second.startswith("Training does not pay: -5.0 points")
    assert second.endswith("; yet pretrained[lda], which is not trained either, has 25.0 percent.")


def test_training_is_compared_with_the_features_where_they_are_above_their_pca(three: StudySpec) -> None:
    rows = [*rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.2}), row("pretrained[features]", 0, 0.35)]
    second = two_sentences(rows, three)[1]
    assert second.startswith("Training pays: +5.0 points MAP@R over pretrained[features]")


def test_too_few_runs_and_no_opening(three: StudySpec) -> None:
    first, second = two_sentences(rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.2}, runs=1), three)
    assert first.endswith("with too few runs to say that this is no chance.")
    assert second == "Training is not shown to pay: +19.8 points MAP@R over pretrained."
    assert two_sentences([], three) == ["Nothing can be said of unseen classes yet: no method has test scores."]


def test_a_second_search_is_no_method_of_its_own(three: StudySpec) -> None:
    twice = replace(three, methods={**three.methods, "arcface@2": three.methods["arcface"]})
    rows = rows_of({"arcface": 0.4, "contrastive": 0.3, "triplet": 0.2, "arcface@2": 0.5})
    first, second = two_sentences(rows, twice)
    assert first.startswith("On unseen classes arcface has the highest MAP@R, 40.0")
    assert first.endswith("better than all 2 others.")
    assert second.startswith("Training pays: +20.0 points")
