"""A misspelt choice raises; it must not train as another one."""

import pytest

from levelfield.losses import MarginLoss, ProxyTripletLoss, RankedListLoss, TripletMarginLoss


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TripletMarginLoss(triplets_per_anchor="semi-hard"), "'all', 'semihard' or a number"),
        (lambda: MarginLoss(triplets_per_anchor="some"), "'all' or a number"),
        (lambda: RankedListLoss(0.4, 10.0, reduction="non-zero"), "'mean' or 'nonzero'"),
        (lambda: ProxyTripletLoss(3, 2, reduction="sum"), "'nonzero' or 'mean'"),
    ],
)
def test_an_unknown_word_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
