"""The sentences of verdicts and of `levelfield compare`'s decision agree with the numbers they are made of."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.verdict import CAVEAT, all_in_words, better_than, in_words, verdict_lines
from levelfield.compare.decide import Rung, decide, decision_lines
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, is_baseline
from levelfield.study.study_file import find_study


def compared(difference: float, low: float | None, high: float | None, p: float | None = None, **other) -> Comparison:
    """Amounts in points."""
    low, high = (None if end is None else end / 100 for end in (low, high))
    fields = {"kind": PAIR, "method": "arcface", "other": "contrastive", "family": 91, "n": 10, "p": p, "p_holm": p}
    return Comparison(
        metric="map_at_r", embedding="separated", difference=difference / 100, low=low, high=high, **{**fields, **other}
    )


BASE, AGAIN = (
    {"kind": OVER_BASELINE, "other": "pretrained"},
    {"kind": SECOND_SEARCH, "other": "arcface", "p_holm": None},
)
SENTENCES = [
    (compared(0.4, -0.1, 0.9, 0.11), "arcface is not significantly better than contrastive|+0.4 points|-0.1 to +0.9"),
    (compared(-1.2, -1.9, -0.5, 0.0026), "contrastive is significantly better|+0.5 to +1.9|p = 0.002 over 91"),
    (compared(1.2, 0.5, 1.9, 0.41), "arcface is not significantly better|+0.5 to +1.9|p = 0.410 over 91"),
    (compared(-3, -4, -2, 1e-9, **BASE), "arcface is significantly worse|-3.0 points|-4.0 to -2.0|p < 0.001"),
    (compared(0.4, None, None, n=2), "arcface over contrastive: +0.4 points MAP@R|too few runs"),
    (compared(0, None, None, n=3), "+0.0 points MAP@R|all 3 runs"),
    (compared(-0.6, -1.4, 0.2, 0.1, method="arcface@2", **AGAIN), "arcface and arcface@2|0.6 points|-0.2 to +1.4"),
    # A p just below the level does not read as the level, and an end close to zero shows its side.
    (compared(0.4, 0.1, 0.7, 0.04999), "is significantly better|p = 0.049"),
    (compared(0.4, 0.1, 0.7, 0.05), "is not significantly better|p = 0.050"),
    (compared(0.42, 0.04, 0.8, 0.03), "+0.42 points MAP@R, 95% interval +0.04 to +0.80"),
    (compared(0.42, -0.004, 0.84, 0.06), "95% interval -0.004 to +0.840"),
]


@pytest.mark.parametrize(("comparison", "parts"), SENTENCES)
def test_sentences_have_the_better_method_first_and_the_numbers(comparison: Comparison, parts: str) -> None:
    assert [part for part in parts.split("|") if part not in in_words(comparison)] == []
    assert "-0.0 points" not in in_words(compared(-0.003, -1, 1, 0.9, kind=OVER_BASELINE))


def test_a_significant_difference_no_larger_than_that_of_two_searches_says_so() -> None:
    searches = [
        compared(gap, -1, 1, 0.5, kind=SECOND_SEARCH, method=f"{loss}@2", other=loss, p_holm=None)
        for loss, gap in (("triplet", 0.2), ("margin", -0.9))
    ]
    pairs = [compared(0.9, 0.5, 1.3, 0.01), compared(1.0, 0.6, 1.4, 0.01), compared(0.3, -0.5, 1.1, 0.6)]
    small, large, none, *_ = all_in_words([*pairs, *searches])
    assert re.search(r"margin.*\(0\.9 points\)", small)
    assert "margin" not in large + none


def rows_of(methods: Sequence[str], runs: int) -> list[ResultRow]:
    """Separated test MAP@R of methods a point apart, with a hundredth of a point of noise."""
    noise = np.random.default_rng(0).normal(0, 1e-4, (len(methods), runs))
    return [
        ResultRow(method, "test", None, run, 0, "separated", "map_at_r", 0.5 + k / 100 + noise[k, run])
        for k, method in enumerate(methods)
        for run in range(runs)
    ]


def test_each_significant_pair_has_a_sentence_and_each_method_the_ones_that_it_beats() -> None:
    spec = load_spec(find_study("own_images_quick"))
    methods = [method for method in spec.methods if not is_baseline(method)]
    rows = rows_of(methods, spec.runs)
    *sentences, caveat = verdict_lines(rows, spec)
    assert len(sentences) == 91
    assert caveat == CAVEAT
    beaten = better_than([each for each in compare_all(rows, methods) if each.kind == PAIR])
    assert beaten == [f"{methods[k]} is significantly better than {', '.join(methods[:k])}" for k in range(13, 0, -1)]


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
