"""What the statistics promise, held against simulated studies."""

import pytest
from benchmark_module import benchmark_module
from scipy.stats import nct, t
from tiny_fit import REPOSITORY

simulation = benchmark_module("study_statistics")

STUDIES, FAMILIES = 20_000, 4_000
DRAWS = list(simulation.DRAWS)


def noise(rate: float, studies: int) -> float:
    """Three standard deviations of a simulated rate."""
    return 3 * (rate * (1 - rate) / studies) ** 0.5


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_the_interval_covers_the_mean_as_often_as_it_says(runs: int) -> None:
    assert simulation.coverage(STUDIES, runs, simulation.normal) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("runs", [3, 10])
@pytest.mark.parametrize("draw", DRAWS)
def test_equal_methods_are_called_different_at_most_at_the_level(draw: str, runs: int) -> None:
    rate = simulation.false_positives(STUDIES, runs, simulation.DRAWS[draw])
    assert rate <= 0.05 + noise(0.05, STUDIES)
    assert draw != "normal" or rate >= 0.05 - noise(0.05, STUDIES), "no timider than need be"


@pytest.mark.parametrize(("draw", "runs"), [("normal", 3), ("normal", 10), ("heavy tails", 3), ("collapses", 10)])
def test_fourteen_equal_methods_are_one_family(draw: str, runs: int) -> None:
    assert simulation.family_errors(FAMILIES, runs, simulation.DRAWS[draw]) <= 0.05 + noise(0.05, FAMILIES)


def test_equal_methods_among_better_ones_are_too() -> None:
    assert simulation.family_errors(FAMILIES, 10, simulation.normal, better=4) <= 0.05 + noise(0.05, FAMILIES)


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_power_is_that_of_the_noncentral_t(runs: int) -> None:
    # The difference of two runs has standard deviation √2.
    shift, quantile = (runs / 2) ** 0.5, t.ppf(0.975, runs - 1)
    expected = nct.sf(quantile, runs - 1, shift) + nct.cdf(-quantile, runs - 1, shift)
    assert simulation.power(STUDIES, runs) == pytest.approx(expected, abs=noise(expected, STUDIES))


@pytest.mark.parametrize(("pairs", "methods"), [(1, "one pair"), (15, "the best of 6"), (91, "the best of 14")])
def test_the_page_s_smallest_differences_are_those_of_the_noncentral_t(pairs: int, methods: str) -> None:
    page = (REPOSITORY / "docs/statistics.md").read_text().splitlines()
    (row,) = (line for line in page if line.startswith(f"| {methods}"))
    found = [simulation.detectable(runs, pairs) for runs in (3, 5, 10)]
    assert [float(cell) for cell in row.split("|")[2:-1]] == pytest.approx(found, rel=0.03)


def test_folds_taken_for_runs_would_err_three_times_as_often() -> None:
    assert simulation.folds_as_runs(STUDIES, 5, simulation.normal) > 0.15


@pytest.mark.slow
def test_losses_that_are_one_function_are_called_different_only_where_a_search_counts_as_fixed() -> None:
    studies = 100
    today, ours = (simulation.searched_errors(studies, by_runs=by_runs) for by_runs in (True, False))
    assert ours / studies <= 0.05 + noise(0.05, studies)
    assert today / studies > 0.3
