"""The decision of `levelfield compare` agrees with the numbers that it is made of."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_sorting import cosines, scores_by_sorting
from torch.nn.functional import normalize

from levelfield.analysis.class_interval import ClassScores
from levelfield.compare.decide import Rung, decide, decision_lines, of_embeddings
from levelfield.core.configuration import merge
from levelfield.study.spec import StudySpec
from levelfield.study.test_scores import EmbeddedTest
from levelfield.training.embed import EmbeddedSet

FEATURES = "pretrained[features]"
NOISE = np.random.default_rng(0).normal(0, 1, (2, 10))


def rung(row: str, validation: float) -> Rung:
    """Ten classes around the score, with two points of noise of their own and two that all rows share."""
    own = np.random.default_rng(len(row)).normal(0, 2, 10)
    of_classes = validation + 2 * (NOISE[0] - NOISE[0].mean()) + own - own.mean()
    return Rung(row, validation / 100, ClassScores(of_classes / 10, np.full(10, 10)))


@pytest.fixture
def three(spec: StudySpec) -> StudySpec:
    config = merge(next(iter(spec.methods.values())), {"model": {"loss": "NTXentLoss"}})
    methods = dict.fromkeys(("head_ntxent", "trunk_ntxent"), config)
    return replace(spec, folds=2, blocks=4, methods=methods, references=["features"], spaces={})


@pytest.mark.parametrize(
    ("validation", "row", "clear"),
    [
        ({FEATURES: 70.5, "pretrained": 69.0, "head_ntxent": 70.4}, FEATURES, 0),
        ({FEATURES: 70.5, "pretrained": 70.9, "head_ntxent": 71.5}, FEATURES, 0),  # as chance may make them
        ({FEATURES: 70.5, "pretrained": 71.0, "head_ntxent": 74.5, "trunk_ntxent": 78.6}, "trunk_ntxent", 2),
    ],
)
def test_the_best_row_clearly_above_the_features_is_taken(validation: dict[str, float], row: str, clear: int) -> None:
    found = [rung(name, score) for name, score in validation.items()]
    assert (decide(found).best.row, decide(found).clear) == (row, clear)
    few = [replace(each, classes=ClassScores(each.classes.sums_K[:7], each.classes.queries_K[:7])) for each in found]
    assert decide(few).best.row == FEATURES, "fewer than eight classes cannot tell"


def test_the_cheapest_that_is_about_as_good_is_taken_on_request(three: StudySpec) -> None:
    rows = {FEATURES: 60.0, "head_ntxent": 74.0, "trunk_ntxent": 78.0, "trunk_ntxent_averaged": 78.2}
    found = [rung(name, score) for name, score in rows.items()]
    assert decide(found).best.row == "trunk_ntxent_averaged"
    assert decide(found, cheapest=True).best.row == "trunk_ntxent"
    methods = dict.fromkeys([*rows][1:], next(iter(three.methods.values())))
    (line, *_) = decision_lines(decide(found, cheapest=True), found, replace(three, methods=methods))
    assert "the cheapest about as good as the best of 3 rows clearly above the features" in line


@pytest.mark.parametrize("kind", ["all", "queries", "groups"])
def test_the_scores_of_test_classes_are_those_of_sorting(kind: str) -> None:
    labels, groups = torch.arange(6).repeat_interleave(5), (torch.arange(5) % 3).repeat(6)
    points, ask = normalize(torch.randn(30, 4) + 2 * torch.randn(6, 4)[labels]), torch.arange(30) % 5 < 2
    given = {"is_query": ask if kind == "queries" else None, "groups": groups if kind == "groups" else None}
    found = of_embeddings(EmbeddedTest(EmbeddedSet(points, labels, torch.arange(30)), data="", **given))
    case = (cosines(points), labels, None, (groups, groups) if kind == "groups" else None)
    if kind == "queries":
        case = cosines(points[ask], points[~ask]), labels[ask], labels[~ask]
    expected = scores_by_sorting(*case, per_query=True)["map_at_r"]
    np.testing.assert_allclose(found.sums_K, np.bincount(case[1], expected), atol=1e-6)
    assert [*found.queries_K] == [2 if kind == "queries" else 5] * 6


@pytest.mark.parametrize("part", ["head", "trunk"])
def test_the_first_line_says_what_to_use_and_the_next_what_it_is_worth(three: StudySpec, part: str) -> None:
    """The checkpoint and the commands are those of `row`, as the first line says."""
    row, features = f"{part}_ntxent", rung(FEATURES, 70.5)
    words = f"the {'linear layer' if part == 'head' else 'whole trunk'}, NT-Xent ({row})"
    found = [features, rung(row, 75.0)]
    lines = decision_lines(decide(found), found, three, ["A is better than B."])
    where = "on 10 validation classes (2 of 4 folds)"
    assert lines[0] == f"Use {words}: the best of 1 row clearly above the features {where}."
    assert lines[1] == "A is better than B."
    assert any("The trunk was not trained" in line for line in lines) == (part == "head")
    none = [features, replace(rung(row, 71.0), same_as="trunk_ntxent")]
    lines = decision_lines(decide(none), none, three)
    assert lines[0] == f"Use the features as they are: no row is clearly above them {where}."
    assert "has +0.5 points there; it would have to be at least" in lines[1]
    assert f"T{words[1:]} has the model of the whole trunk, NT-Xent (trunk_ntxent)." in lines
