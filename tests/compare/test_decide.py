"""The decision of `levelfield compare` agrees with the numbers that it is made of."""

from dataclasses import replace

import pytest

from levelfield.compare.decide import Rung, decide, decision_lines
from levelfield.study.spec import StudySpec

FEATURES = "pretrained[features]"


def rung(row: str, validation: float, map_at_r: float, precision: float) -> Rung:
    scores = {"map_at_r": map_at_r / 100, "precision_at_1": precision / 100}
    return Rung(row, validation / 100, scores, scores, 1.0)


@pytest.fixture
def three(spec: StudySpec) -> StudySpec:
    return replace(spec, folds=2, blocks=4)


@pytest.mark.parametrize(
    ("validation", "row"),
    [
        ({FEATURES: 70.5, "pretrained": 69.0, "head_ntxent": 70.4}, FEATURES),
        ({"pretrained": 70.5, FEATURES: 70.5, "head_ntxent": 70.5}, FEATURES),  # of equals the cheapest
        ({FEATURES: 70.5, "pretrained": 71.0, "head_ntxent": 71.5, "trunk_ntxent": 75.6}, "trunk_ntxent"),
    ],
)
def test_the_highest_validation_score_is_taken(validation: dict[str, float], row: str) -> None:
    found = [rung(name, score, 50, 50) for name, score in validation.items()]
    assert decide(found).row == row


@pytest.mark.parametrize(
    ("part", "map_at_r", "precision", "gains"),
    [
        ("head", 50.0, 85.0, "50.0 (untrained features 49.7: +0.3) and P@1 85.0 (untrained features 88.8: -3.8)"),
        ("head", 45.6, 88.8, "45.6 (untrained features 49.7: -4.1) and P@1 88.8 (untrained features 88.8: +0.0)"),
        ("trunk", 54.5, 91.8, "54.5 (untrained features 49.7: +4.8) and P@1 91.8 (untrained features 88.8: +3.0)"),
    ],
)
def test_the_first_line_says_what_to_use_and_what_it_is_worth(three, part, map_at_r, precision, gains):
    """The checkpoint and the commands are those of `row`, as the first line says."""
    row, features = f"{part}_ntxent", rung(FEATURES, 70.5, 49.7, 88.8)
    found = [features, rung(row, 71.0, map_at_r, precision)]
    lines = decision_lines(decide(found), found, three)
    assert lines[0] == f"Use {row}: on unseen classes MAP@R {gains}, in percent."
    assert "2 of 4 folds" in lines[1]
    table = [line.split() for line in lines if line.startswith((FEATURES, row))]
    assert table == [[FEATURES, "70.5", "49.7", "88.8", "1"], [row, "71.0", str(map_at_r), str(precision), "1", "<"]]
    none = [features, rung(row, 69.0, map_at_r, precision)]
    assert decision_lines(decide(none), none, three)[0].startswith("Use the features as they are")
