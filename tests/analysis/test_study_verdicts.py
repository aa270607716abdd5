"""The sentences of verdicts agree with the numbers they are made of."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.verdict import CAVEAT, all_in_words, better_than, in_words, verdict_lines
from levelfield.study.rows import load_spec
from levelfield.study.spec import is_baseline
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
