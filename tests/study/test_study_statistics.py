"""The t-interval against tabulated values and its own promise."""

import numpy as np
import pytest

from levelfield.study.statistics import mean, t_interval


def test_half_width_from_the_table_of_students_t() -> None:
    # s = 1, n = 3: t(0.975, 2) = 4.303 and 4.303 / sqrt(3) = 2.484, from a printed table.
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=5e-4)
    # t(0.975, 9) = 2.262; sample variance of 0..9 is 82.5 / 9.
    assert t_interval([float(i) for i in range(10)]) == pytest.approx(2.262 * (82.5 / 9 / 10) ** 0.5, abs=1e-3)


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.7]])
def test_fewer_than_three_runs_have_no_interval(values: list[float]) -> None:
    assert t_interval(values) is None


def test_mean_does_not_depend_on_the_order() -> None:
    values = np.random.default_rng(0).random(50).tolist()
    assert mean(values) == mean(sorted(values)) == pytest.approx(float(np.mean(values)), abs=1e-15)
    with pytest.raises(ValueError, match="no values"):
        mean([])


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1).normal(0.3, 0.02, size=(2000, 5))
    covered = np.mean([abs(mean(row) - 0.3) <= t_interval(row) for row in draws.tolist()])
    assert covered == pytest.approx(0.95, abs=0.015)
