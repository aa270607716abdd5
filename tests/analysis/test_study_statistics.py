"""Intervals, paired comparisons and Holm's correction against tables, hand calculation and scipy."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from levelfield.analysis.statistics import holm, paired_comparison, t_interval


def test_half_width_from_the_table_of_students_t() -> None:
    # s = 1, n = 3: t(0.975, 2) = 4.303 and 4.303 / sqrt(3) = 2.484, from a printed table.
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=5e-4)
    # t(0.975, 9) = 2.262; sample variance of 0..9 is 82.5 / 9.
    assert t_interval([float(i) for i in range(10)]) == pytest.approx(2.262 * (82.5 / 9 / 10) ** 0.5, abs=1e-3)


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.7]])
def test_fewer_than_three_runs_have_no_interval(values: list[float]) -> None:
    assert t_interval(values) is None


def test_paired_comparison_by_hand() -> None:
    # The runs differ by 1, 2 and 3 once the folds are averaged: mean 2, s = 1, t = 2√3. With 2 degrees of freedom
    # p = 1 - t / √(2 + t²) and the table's t(0.975, 2) is 4.303.
    second = np.array([[10.0, 20.0], [11.0, 25.0], [9.0, 21.0]])
    first = second + np.array([[1.5, 0.5], [0.0, 4.0], [3.0, 3.0]])
    found = paired_comparison(first, second)
    assert found.difference == pytest.approx(2)
    assert found.p == pytest.approx(1 - (12 / 14) ** 0.5)
    assert (found.low, found.high) == (pytest.approx(2 - 2.484, abs=5e-4), pytest.approx(2 + 2.484, abs=5e-4))


@pytest.mark.parametrize("folds", [1, 4])
def test_paired_comparison_of_many_studies_is_scipys(folds: int) -> None:
    first, second = np.random.default_rng(3).random((2, 50, 7, folds))
    found = paired_comparison(first, second)
    expected = ttest_rel(first.mean(axis=-1), second.mean(axis=-1), axis=-1)
    interval = expected.confidence_interval(0.95)
    np.testing.assert_allclose(found.p, expected.pvalue, rtol=1e-9)
    np.testing.assert_allclose(found.low, interval.low, atol=1e-12)
    np.testing.assert_allclose(found.high, interval.high, atol=1e-12)
    np.testing.assert_array_equal(found.p < 0.05, (found.low > 0) | (found.high < 0))


def test_a_single_run_without_randomness_is_compared_with_all() -> None:
    scores, fixed = np.random.default_rng(4).random((6, 2)), np.array([[0.4, 0.6]])
    expected = ttest_1samp(scores.mean(axis=-1), 0.5)
    assert paired_comparison(scores, fixed).p == pytest.approx(expected.pvalue)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_comparison(scores, np.zeros((5, 2)))
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_comparison(scores, np.zeros((6, 1)))


def test_differences_that_do_not_vary_give_neither_interval_nor_p() -> None:
    second = np.array([[0.3], [0.4], [0.5]])
    for added in (0.0, 0.1):  # 0.1 is not exact: the differences vary in their last bit
        found = paired_comparison(second + added, second)
        assert found.difference == pytest.approx(added)
        assert found.constant
        assert np.isnan([found.low, found.high, found.p]).all()
    assert not paired_comparison(second, second[::-1]).constant


def test_two_runs_give_neither_interval_nor_p() -> None:
    found = paired_comparison(np.array([[0.3], [0.5]]), np.array([[0.1], [0.2]]))
    assert found.difference == pytest.approx(0.25)
    assert np.isnan([found.low, found.high, found.p]).all()


def test_holm_by_hand() -> None:
    # Sorted and times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04; the last may not fall below the one before.
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1, 1])
    assert holm(np.array([])).shape == (0,)
    # What could not be tested still counts: times 3 and 2.
    np.testing.assert_allclose(holm(np.array([0.01, np.nan, 0.03])), [0.03, np.nan, 0.06])


def test_holm_of_many_studies_is_that_of_each() -> None:
    p = np.random.default_rng(5).random((20, 6)) ** 3
    np.testing.assert_array_equal(holm(p), [holm(one) for one in p])
