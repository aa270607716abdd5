"""What `levelfield compare` decides, from scores whose answer is known."""

from dataclasses import replace

import pytest

from levelfield.analysis.ladder import Rung, decide, decision_lines
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
        ({"pretrained[features-b]": 72.0, FEATURES: 71.0, "head_ntxent": 71.5}, "pretrained[features-b]"),
    ],
)
def test_the_highest_validation_score_is_taken(validation: dict[str, float], row: str) -> None:
    found = [rung(name, score, 50, 50) for name, score in validation.items()]
    assert decide(found).row == row


@pytest.mark.parametrize(
    ("map_at_r", "precision", "gains"),
    [(50.0, 85.0, "50.0 (untrained features 49.7: +0.3) and P@1 85.0 (untrained features 88.8: -3.8)"),
     (45.6, 88.8, "45.6 (untrained features 49.7: -4.1) and P@1 88.8 (untrained features 88.8: +0.0)")],
)  # fmt: skip
def test_a_loss_on_the_test_classes_is_printed_with_its_sign_and_changes_no_choice(
    three: StudySpec, map_at_r: float, precision: float, gains: str
) -> None:
    """The checkpoint and the commands are those of `row`, as the first line says."""
    found = [rung(FEATURES, 70.5, 49.7, 88.8), rung("head_ntxent", 71.0, map_at_r, precision)]
    decision = decide(found)
    assert decision.row == "head_ntxent"
    assert decision.of_fold == f"MAP@R {map_at_r}, P@1 {precision} percent on the test classes"
    lines = decision_lines(decision, found, three)
    assert lines[0] == f"Use head_ntxent: on unseen classes MAP@R {gains}, in percent."
    assert lines[1] == "Validation chose it on 2 of 4 folds. The test classes were scored after validation."
    assert [line.split()[0] for line in lines if line.endswith("<")] == ["head_ntxent"]


def test_the_first_line_says_what_to_use_and_what_it_is_worth(three: StudySpec) -> None:
    found = [rung(FEATURES, 70.5, 49.7, 88.8), rung("trunk_ntxent", 75.6, 54.5, 91.8)]
    lines = decision_lines(decide(found), found, three)
    assert lines[0].startswith("Use trunk_ntxent: ")
    assert "MAP@R 54.5 (untrained features 49.7: +4.8) and P@1 91.8 (untrained features 88.8: +3.0)" in lines[0]
    assert "2 of 4 folds" in lines[1]
    table = [line.split() for line in lines if line.startswith(("pretrained", "trunk"))]
    assert table == [[FEATURES, "70.5", "49.7", "88.8", "1"], ["trunk_ntxent", "75.6", "54.5", "91.8", "1", "<"]]


def test_where_nothing_wins_in_validation_the_first_line_says_so(three: StudySpec) -> None:
    found = [rung(FEATURES, 70.5, 49.7, 88.8), rung("head_ntxent", 69.0, 55.0, 90.0)]
    lines = decision_lines(decide(found), found, three)
    assert lines[0].startswith("Use the features as they are")
    assert lines[1] == "The test classes were scored after validation."
