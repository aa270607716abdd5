"""The sentences agree with the numbers they are made of."""

import pytest

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison
from levelfield.analysis.verdicts import all_in_words, in_words


def compared(difference: float, low: float | None, high: float | None, p: float | None = None, **other) -> Comparison:
    """Amounts in points."""
    low, high = (None if end is None else end / 100 for end in (low, high))
    fields = {"kind": PAIR, "method": "arcface", "other": "contrastive", "family": 91, "n": 10, "p": p, "p_holm": p}
    return Comparison(
        metric="map_at_r", embedding="separated", difference=difference / 100, low=low, high=high, **{**fields, **other}
    )


@pytest.mark.parametrize(
    ("comparison", "sentence"),
    [
        (
            compared(0.4, -0.1, 0.9, 0.11),
            "arcface over contrastive: +0.4 points MAP@R, 95% interval -0.1 to +0.9: no difference shown",
        ),
        (
            compared(-0.4, -0.9, 0.1, 0.11),
            "contrastive over arcface: +0.4 points MAP@R, 95% interval -0.1 to +0.9: no difference shown",
        ),
        (
            compared(-1.2, -1.9, -0.5, 0.0026),
            "contrastive over arcface: +1.2 points MAP@R, 95% interval +0.5 to +1.9: contrastive is better "
            "(Holm's p = 0.002)",
        ),
        (
            compared(1.2, 0.5, 1.9, 0.41),
            "arcface over contrastive: +1.2 points MAP@R, 95% interval +0.5 to +1.9: no difference shown, as one of 91 "
            "comparisons may miss zero by chance (Holm's p = 0.410)",
        ),
        (
            compared(-3, -4, -2, 1e-9, kind=OVER_BASELINE, other="pretrained"),
            "arcface over pretrained: -3.0 points MAP@R, 95% interval -4.0 to -2.0: arcface is worse "
            "(Holm's p < 0.001)",
        ),
        (
            compared(0.4, None, None, n=2),
            "arcface over contrastive: +0.4 points MAP@R: too few runs for an interval",
        ),
        (
            compared(0, None, None, n=3),
            "arcface over contrastive: +0.0 points MAP@R: the same in all 3 runs, which gives no interval",
        ),
        (
            compared(-0.6, -1.4, 0.2, 0.1, kind=SECOND_SEARCH, method="arcface@2", other="arcface", p_holm=None),
            "two searches of arcface (arcface and arcface@2) differed by 0.6 points MAP@R, 95% interval -0.2 to "
            "+1.4: differences of that size or smaller between two losses can come from their searches alone",
        ),
    ],
)
def test_sentences(comparison: Comparison, sentence: str) -> None:
    assert in_words(comparison) == sentence


def test_an_end_close_to_zero_shows_its_side() -> None:
    assert "+0.4 points" not in in_words(compared(0.42, 0.04, 0.8, 0.03))
    assert "+0.42 points MAP@R, 95% interval +0.04 to +0.80" in in_words(compared(0.42, 0.04, 0.8, 0.03))
    assert "95% interval -0.004 to +0.840" in in_words(compared(0.42, -0.004, 0.84, 0.06))
    assert "-0.0 points" not in in_words(compared(-0.003, -1, 1, 0.9, kind=OVER_BASELINE))


def test_a_p_just_below_the_level_does_not_read_as_the_level() -> None:
    assert "is better (Holm's p = 0.049)" in in_words(compared(0.4, 0.1, 0.7, 0.04999))
    assert "no difference shown, as one of 91 comparisons may miss zero by chance (Holm's p = 0.050)" in in_words(
        compared(0.4, 0.1, 0.7, 0.05)
    )


def test_a_shown_difference_no_larger_than_a_second_searchs_is_said_to_be_so() -> None:
    searches = [
        compared(gap, -1, 1, 0.5, kind=SECOND_SEARCH, method=f"{loss}@2", other=loss, p_holm=None)
        for loss, gap in (("triplet", 0.2), ("margin", -0.9))
    ]
    small, large, none = all_in_words(
        [compared(0.9, 0.5, 1.3, 0.01), compared(1.0, 0.6, 1.4, 0.01), compared(0.3, -0.5, 1.1, 0.6), *searches]
    )[:3]
    assert small.endswith(
        "arcface is better (Holm's p = 0.010), by no more than two searches of margin differed (0.9 points)"
    )
    assert large.endswith("arcface is better (Holm's p = 0.010)")
    assert none.endswith("no difference shown")
