"""Kendall's tau by hand, and its interval against simulated orders of known agreement."""

import math

import numpy as np
import pytest

from levelfield.analysis.agreement import kendall


def order(values: list[float]) -> dict[str, float]:
    return {str(number): value for number, value in enumerate(values)}


def test_tau_by_hand_over_what_both_have() -> None:
    # Of 10 pairs 8 are in the same order: (8 - 2) / 10.
    found = kendall(order([1, 2, 3, 4, 5]) | {"alone": 9}, order([1, 2, 4, 5, 3]))
    assert (found.tau, found.n) == (pytest.approx(0.6), 5)
    reach = 1.959964 * math.sqrt(0.437 / 1)
    assert found.low == pytest.approx(math.tanh(math.atanh(0.6) - reach))
    assert found.high == pytest.approx(math.tanh(math.atanh(0.6) + reach))


def test_the_interval_holds_the_true_tau_as_often_as_it_says() -> None:
    """Normal scores of correlation rho have a tau of 2 / pi asin(rho) (Kendall 1949)."""
    rng, rho = np.random.default_rng(0), 0.7
    true = 2 / math.pi * math.asin(rho)
    held = []
    for _ in range(400):
        first = rng.standard_normal(14)
        second = rho * first + math.sqrt(1 - rho**2) * rng.standard_normal(14)
        found = kendall(order(first.tolist()), order(second.tolist()))
        held.append(found.low <= true <= found.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.03)


def test_equal_orders_have_no_interval_and_few_methods_are_refused() -> None:
    same = kendall(order([1, 2, 3, 4, 5]), order([2, 4, 6, 8, 10]))
    assert (same.tau, same.low, same.high) == (1, 1, 1)
    with pytest.raises(ValueError, match="5 methods in common, not 4"):
        kendall(order([1, 2, 3, 4]), order([1, 2, 3, 4]))
