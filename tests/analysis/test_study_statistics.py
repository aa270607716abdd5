"""Intervals, comparisons, Holm's correction and ranks against tables, hand calculation and SciPy."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import f, ttest_1samp, ttest_rel
from statsmodels.api import OLS
from statsmodels.stats.multitest import multipletests

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import holm, search_variance, swapped_halves_test, t_interval


def test_half_width_from_the_table_of_students_t() -> None:
    # s = 1, n = 3: t(0.975, 2) = 4.303 and 4.303 / sqrt(3) = 2.484, from a printed table.
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=5e-4)
    assert t_interval([0.5, 0.7]) is None, "two runs have no interval"
    # t(0.975, 9) = 2.262; sample variance of 0..9 is 82.5 / 9.
    assert t_interval([float(i) for i in range(10)]) == pytest.approx(2.262 * (82.5 / 9 / 10) ** 0.5, abs=1e-3)


def test_holm_by_hand() -> None:
    # Sorted and times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04; the last may not fall below the one before.
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1, 1])
    assert holm(np.array([])).shape == (0,)
    # What could not be tested still counts: times 3 and 2.
    np.testing.assert_allclose(holm(np.array([0.01, np.nan, 0.03])), [0.03, np.nan, 0.06])


FOLDS = 3


def rows_of(scores: dict[str, np.ndarray], embedding: str = "separated") -> list[ResultRow]:
    """Rows of the scores (runs, folds) of each method."""
    return [
        ResultRow(method, "test", None, run, fold, embedding, "map_at_r", float(score))
        for method, values in scores.items()
        for (run, fold), score in np.ndenumerate(values)
    ]


@pytest.fixture
def scores() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    means = {"a": 0.30, "b": 0.31, "c": 0.34}
    return {method: mean + 0.01 * rng.standard_normal((5, FOLDS)) for method, mean in means.items()}


def test_pairs_are_tested_over_the_means_of_their_runs(scores: dict[str, np.ndarray]) -> None:
    found = compare_all(rows_of(scores), list(scores))
    assert [(c.method, c.other, c.kind) for c in found] == [("a", "b", PAIR), ("a", "c", PAIR), ("b", "c", PAIR)]
    expected = [ttest_rel(scores[c.method].mean(axis=1), scores[c.other].mean(axis=1)) for c in found]
    assert [c.p for c in found] == pytest.approx([e.pvalue for e in expected])
    assert found[0].difference == pytest.approx(scores["a"].mean() - scores["b"].mean())
    assert (found[1].low, found[1].high) == pytest.approx(tuple(expected[1].confidence_interval(0.95)))
    assert {(c.n, c.family) for c in found} == {(5, 3)}
    assert [c.p_holm for c in found] == pytest.approx(multipletests([c.p for c in found], method="holm")[1])
    assert [c.shown for c in found] == [c.p_holm < 0.05 for c in found]
    planned = compare_all(rows_of(scores), list(scores), planned="b")
    assert [(c.method, c.other, c.family) for c in planned] == [("b", "a", 2), ("b", "c", 2)]
    assert (planned[1].p, planned[1].p_holm) == (found[2].p, pytest.approx(min(1, 2 * found[2].p)))


def test_concatenated_embeddings_are_compared_with_one_pca_where_there_is_one() -> None:
    scores = {"a": [[0.3], [0.31], [0.32]], "pretrained": [[0.2]], "pretrained_one_pca": [[0.25]]}
    rows = rows_of(scores, "concatenated")
    for known, other, difference in ((rows, "pretrained_one_pca", 0.06), (rows[:-1], "pretrained", 0.11)):
        (found,) = compare_all(known, ["a"], embedding="concatenated")
        assert (found.other, found.difference) == (other, pytest.approx(difference))


def test_runs_and_folds_of_one_method_alone_are_left_out_and_one_without_scores_counts(scores) -> None:
    rows = [row for row in rows_of(scores) if row.method == "a" or (row.run > 0 and (row.run, row.fold) != (4, 2))]
    rows.append(ResultRow("b", "run", None, 4, 2, "separated", "map_at_r", 0.9))
    (found,) = compare_all([row for row in rows if row.method != "c"], ["a", "b", "c"])
    assert found.p == pytest.approx(ttest_rel(scores["a"][1:4].mean(axis=1), scores["b"][1:4].mean(axis=1)).pvalue)
    assert (found.n, found.family, found.p_holm) == (3, 3, pytest.approx(min(1, 3 * found.p)))


def test_two_common_runs_and_a_difference_that_never_varies_have_a_difference_only(scores):
    of_two = (scores["a"][:2] - scores["b"][:2]).mean()
    for runs, a, difference in ((2, scores["a"][:2], of_two), (5, scores["b"] + 0.1, 0.1)):
        (found,) = compare_all(rows_of({"a": a, "b": scores["b"]}), ["a", "b"])
        assert found.difference == pytest.approx(difference)
        assert (found.n, found.low, found.high, found.p, found.p_holm, found.shown) == (runs, *[None] * 4, False)


def test_the_baseline_is_a_fixed_number_and_a_family_of_its_own(scores: dict[str, np.ndarray]) -> None:
    rows = rows_of({**scores, "pretrained": np.full((1, FOLDS), 0.305)})
    found = [c for c in compare_all(rows, list(scores)) if c.kind == OVER_BASELINE]
    assert [(c.method, c.other, c.family, c.n) for c in found] == [(m, "pretrained", 3, 5) for m in scores]
    assert [c.p for c in found] == pytest.approx([ttest_1samp(scores[m].mean(axis=1), 0.305).pvalue for m in scores])
    assert min(c.p_holm for c in found) == pytest.approx(3 * min(c.p for c in found))
    assert [c for c in compare_all(rows, list(scores)) if c.kind == PAIR] == compare_all(rows_of(scores), [*scores])


def test_the_variance_of_searches_by_hand() -> None:
    # Squares of deviations: 2 from (1, 3), 8 from (0, 2, 4), none from a lone search; 1 + 2 degrees of freedom.
    assert search_variance([[1.0, 3.0], [0.0, 2.0, 4.0], [7.0]]) == pytest.approx((10 / 3, 3))
    assert search_variance([[7.0], [8.0]]) is None
    assert search_variance([[0.1 + 0.2, 0.3], [0.5]]) is None, "equal up to rounding"


def test_where_a_method_is_searched_twice_the_searches_are_compared(scores: dict[str, np.ndarray]) -> None:
    """As in a least-squares fit with a mean for each method; two searches of a method by their runs, in no family."""
    scores |= {"a@2": scores["a"] + 0.02 * scores["b"], "a@3": scores["c"] - 0.07, "b@2": scores["a"] + 0.02}
    methods = ["a", "a@2", "a@3", "b", "b@2", "c"]
    found = compare_all(rows_of({**scores, "pretrained": np.full((1, FOLDS), 0.3)}), methods)
    own = np.eye(3)
    fit = OLS([scores[m].mean() - 0.3 for m in methods], np.repeat(own, [3, 2, 1], axis=0)).fit()
    (over,) = [c for c in found if c.kind == OVER_BASELINE and c.method == "a"]
    for c, mean in zip([*found[:3], over], [*(a - b for a, b in combinations(own, 2)), own[0]], strict=True):
        expected = fit.t_test(mean)
        interval = (expected.effect[0], *expected.conf_int()[0], float(expected.pvalue))
        assert (c.difference, c.low, c.high, c.p) == pytest.approx(interval)
        assert (c.over, c.family) == ("searches", 3)
    same = [c for c in found if c.kind == SECOND_SEARCH]
    assert [c.method + c.other for c in same] == ["a@2a", "a@3a", "a@3a@2", "b@2b"]
    tests = [ttest_rel(scores[c.method].mean(axis=1), scores[c.other].mean(axis=1)).pvalue for c in same]
    assert [(c.p, c.p_holm, c.shown) for c in same] == [(pytest.approx(p), None, False) for p in tests]


def test_swapped_halves_are_alpaydins_f_with_any_number_of_cuts() -> None:
    # One cut: (1 + 9) / (2 · 2) = 2.5 with 2 and 1 degrees of freedom, P(F > x) = 1 / √(1 + 2 x).
    assert swapped_halves_test(np.array([[1.0, 3.0]])) == pytest.approx(6**-0.5)
    differences = np.random.default_rng(6).normal(1, 1, (5, 2))
    squares = sum(np.var(cut, ddof=0) * 2 for cut in differences)
    expected = sum(value**2 for cut in differences for value in cut) / (2 * squares)
    assert swapped_halves_test(differences) == pytest.approx(f.sf(expected, 10, 5))


@pytest.mark.parametrize("replicates", [3, 4])
def test_replicates_are_the_unit_where_there_are_three(replicates: int) -> None:
    """Of two, tests/study/test_sweep.py has the searches as the unit."""
    drawn = np.random.default_rng(7).normal(0.3, 0.01, (replicates, 2, 2, 5, FOLDS))  # method, search, run, fold
    drawn[:, 0] += 0.02
    methods = ["a", "a@2", "b", "b@2"]
    parts = (zip(methods, of_methods.reshape(4, 5, FOLDS), strict=True) for of_methods in drawn)
    rows = [replace(row, replicate=number) for number, part in enumerate(parts) for row in rows_of(dict(part))]
    pair, *searches = compare_all(rows, methods)
    means = drawn.mean(axis=(2, 3, 4))
    assert pair.difference == pytest.approx((means[:, 0] - means[:, 1]).mean())
    expected = ttest_rel(*means.T)
    assert (pair.low, pair.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    p = swapped_halves_test((means[:, 0] - means[:, 1]).reshape(2, 2)) if replicates == 4 else expected.pvalue
    assert (pair.over, pair.n, pair.p) == ("replicates", replicates, pytest.approx(p))
    (ours,) = (c for c in searches if (c.method, c.other) == ("a@2", "a"))
    assert ours.difference == pytest.approx((drawn[:, 0, 1] - drawn[:, 0, 0]).mean())
