"""Simulated searches against numbers that follow from their definition."""

import numpy as np
import pytest

from levelfield.analysis.search_noise import ScoreSurface, Searched, agreeing, argument_at_fault, outcome
from levelfield.study.search_space import read_space


def test_without_noise_a_search_chooses_the_best_that_it_tried() -> None:
    two = Searched("two settings", np.array([0.0, 1.0]), noise=0.0)
    for final in (0, 2):
        # One of N - k trials is the better setting with probability 1 - 2^-(N - k).
        gap, below = outcome(two, trainings=4, final=final)
        missed = 0.5 ** (4 - final)
        assert below == pytest.approx(missed, abs=0.01)
        assert gap == pytest.approx(2 * missed * (1 - missed), abs=0.01)


def test_a_second_look_helps_where_noise_decides() -> None:
    """Two settings, one better by a standard deviation of the noise, each tried often: averages of two tell more."""
    noisy = Searched("noisy", np.array([0.0, 0.01]), noise=0.01)
    plain, final = (outcome(noisy, trainings=20, final=final)[1] for final in (0, 5))
    assert final < plain


def test_searches_agree_as_often_as_both_or_neither_meet_the_better_setting() -> None:
    two = Searched("two settings", np.array([0.0, 1.0]), noise=0.0)
    for trainings in (1, 2, 4):
        missed = 0.5**trainings
        share, pairs, agree = agreeing(two, trainings, within=0.5)
        assert share == pytest.approx(missed**2 + (1 - missed) ** 2, abs=0.015)
        assert np.array_equal(agree, pairs[0] == pairs[1])
    assert agreeing(two, 1, within=1.0)[0] == 1


def test_the_surface_takes_noise_off_a_line() -> None:
    space = read_space({"a": {"low": 0.0, "high": 1.0}}, "test")
    places = np.linspace(0, 1, 40)
    values = places + 0.2 * np.random.default_rng(0).standard_normal(40)
    tried = [{"a": place} for place in places]
    found = ScoreSurface(space, tried, values, noise=0.2)(tried)
    assert np.abs(found - places).mean() < np.abs(values - places).mean() / 2


def test_the_argument_that_decides_is_at_fault() -> None:
    """Of three arguments the score is one, in the logarithm of its scale: 1 from end to end, 0.5 from the middle."""
    space = read_space(
        {"a": {"low": 0.0, "high": 1.0}, "b": {"low": 0.01, "high": 100.0, "scale": "log"}, "c": {"low": 1, "high": 9}},
        "test",
    )
    drawn = np.random.default_rng(0).random((60, 3))
    tried = [{"a": a, "b": 0.01 * 10 ** (4 * b), "c": 1 + 8 * c} for a, b, c in drawn]
    surface = ScoreSurface(space, tried, drawn[:, 1], noise=1e-3)
    first, second = [{"a": 0.1, "b": 0.01, "c": 2}, {"a": 0.2, "b": 1.0, "c": 3}], [{"a": 0.9, "b": 100.0, "c": 8}] * 2
    found = argument_at_fault(surface, first, second)
    assert next(iter(found)) == "b"
    assert found["b"] == pytest.approx((1 + 0.5) / 2, abs=0.05)
    assert max(found["a"], found["c"]) < 0.05
