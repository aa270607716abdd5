"""The sentences agree with the numbers they are made of."""

from collections.abc import Sequence

import numpy as np
import pytest

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.verdicts import CAVEAT, all_in_words, better_than, in_words, verdict_lines
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


@pytest.mark.parametrize(
    ("comparison", "parts"),
    [
        (
            compared(0.4, -0.1, 0.9, 0.11),
            ["arcface is not significantly better than contrastive", "+0.4 points MAP@R", "-0.1 to +0.9"],
        ),
        (
            compared(-0.4, -0.9, 0.1, 0.11),
            ["contrastive is not significantly better than arcface", "+0.4 points MAP@R", "-0.1 to +0.9"],
        ),
        (
            compared(-1.2, -1.9, -0.5, 0.0026),
            ["contrastive is significantly better than arcface", "+1.2 points", "+0.5 to +1.9", "p = 0.002 over 91"],
        ),
        (compared(1.2, 0.5, 1.9, 0.41), ["arcface is not significantly better", "+0.5 to +1.9", "p = 0.410 over 91"]),
        (
            compared(-3, -4, -2, 1e-9, kind=OVER_BASELINE, other="pretrained"),
            ["arcface is significantly worse than pretrained", "-3.0 points", "-4.0 to -2.0", "p < 0.001"],
        ),
        (compared(0.4, None, None, n=2), ["arcface over contrastive: +0.4 points MAP@R", "too few runs"]),
        (compared(0, None, None, n=3), ["+0.0 points MAP@R", "the same in all 3 runs"]),
        (
            compared(-0.6, -1.4, 0.2, 0.1, kind=SECOND_SEARCH, method="arcface@2", other="arcface", p_holm=None),
            ["two searches of arcface (arcface and arcface@2) differ by 0.6 points MAP@R", "-0.2 to +1.4"],
        ),
    ],
)
def test_sentences_have_the_better_method_first_and_the_numbers(comparison: Comparison, parts: list[str]) -> None:
    assert all(part in in_words(comparison) for part in parts)


def test_an_end_close_to_zero_shows_its_side() -> None:
    assert "+0.4 points" not in in_words(compared(0.42, 0.04, 0.8, 0.03))
    assert "+0.42 points MAP@R, 95% interval +0.04 to +0.80" in in_words(compared(0.42, 0.04, 0.8, 0.03))
    assert "95% interval -0.004 to +0.840" in in_words(compared(0.42, -0.004, 0.84, 0.06))
    assert "-0.0 points" not in in_words(compared(-0.003, -1, 1, 0.9, kind=OVER_BASELINE))


def test_a_p_just_below_the_level_does_not_read_as_the_level() -> None:
    just_below, at_the_level = (in_words(compared(0.4, 0.1, 0.7, p)) for p in (0.04999, 0.05))
    assert "is significantly better" in just_below
    assert "p = 0.049" in just_below
    assert "is not significantly better" in at_the_level
    assert "p = 0.050" in at_the_level


def test_a_significant_difference_no_larger_than_that_of_two_searches_says_so() -> None:
    searches = [
        compared(gap, -1, 1, 0.5, kind=SECOND_SEARCH, method=f"{loss}@2", other=loss, p_holm=None)
        for loss, gap in (("triplet", 0.2), ("margin", -0.9))
    ]
    small, large, none = all_in_words(
        [compared(0.9, 0.5, 1.3, 0.01), compared(1.0, 0.6, 1.4, 0.01), compared(0.3, -0.5, 1.1, 0.6), *searches]
    )[:3]
    assert "margin" in small
    assert "(0.9 points)" in small
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
