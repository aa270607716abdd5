"""Which methods of a study are compared, over which runs, and in which family."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import ResultRow

FOLDS = 3


def rows_of(method: str, scores: np.ndarray, runs: Sequence[int] | None = None) -> list[ResultRow]:
    """Rows of scores (runs, folds)."""
    runs = range(len(scores)) if runs is None else runs
    return [
        ResultRow(method, "test", None, run, fold, "separated", "map_at_r", float(score))
        for run, by_fold in zip(runs, scores, strict=True)
        for fold, score in enumerate(by_fold)
    ]


@pytest.fixture
def scores() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    means = {"a": 0.30, "b": 0.31, "c": 0.34}
    return {method: mean + 0.01 * rng.standard_normal((5, FOLDS)) for method, mean in means.items()}


def by_names(comparisons: list[Comparison]) -> dict[tuple[str, str], Comparison]:
    return {(c.method, c.other): c for c in comparisons}


def test_pairs_are_tested_over_the_means_of_their_runs(scores: dict[str, np.ndarray]) -> None:
    found = compare_all([row for m in scores for row in rows_of(m, scores[m])], list(scores))
    assert [(c.method, c.other, c.kind) for c in found] == [("a", "b", PAIR), ("a", "c", PAIR), ("b", "c", PAIR)]
    expected = [ttest_rel(scores[c.method].mean(axis=1), scores[c.other].mean(axis=1)) for c in found]
    assert [c.p for c in found] == pytest.approx([e.pvalue for e in expected])
    assert found[0].difference == pytest.approx(scores["a"].mean() - scores["b"].mean())
    assert (found[1].low, found[1].high) == pytest.approx(tuple(expected[1].confidence_interval(0.95)))
    assert {(c.n, c.family) for c in found} == {(5, 3)}
    # Holm by hand: the smallest of three times 3, the next times 2, the largest as it is, none below the one before.
    first, second, third = sorted(c.p for c in found)
    adjusted = [min(1, 3 * first)]
    adjusted.append(max(adjusted[-1], min(1, 2 * second)))
    adjusted.append(max(adjusted[-1], third))
    assert sorted(c.p_holm for c in found) == pytest.approx(adjusted)
    assert [c.shown for c in found] == [c.p_holm < 0.05 for c in found]


def test_concatenated_scores_are_one_a_run(scores: dict[str, np.ndarray]) -> None:
    rows = [
        ResultRow(m, "test", None, run, None, "concatenated", "precision_at_1", float(values[run, 0]))
        for m, values in scores.items()
        for run in range(5)
    ]
    found = by_names(compare_all(rows, list(scores), "precision_at_1", "concatenated"))["a", "c"]
    assert found.p == pytest.approx(ttest_rel(scores["a"][:, 0], scores["c"][:, 0]).pvalue)
    assert compare_all(rows, list(scores)) == [], "of another metric"


def test_concatenated_embeddings_are_compared_with_one_pca_where_there_is_one() -> None:
    of_runs = [("a", run, 0.3 + run / 100) for run in range(3)]
    untrained = [("pretrained", 0, 0.2), ("pretrained_one_pca", 0, 0.25)]
    for known, other in ((untrained, "pretrained_one_pca"), (untrained[:1], "pretrained")):
        rows = [
            ResultRow(m, "test", None, run, None, "concatenated", "map_at_r", value)
            for m, run, value in (*of_runs, *known)
        ]
        (found,) = compare_all(rows, ["a"], embedding="concatenated")
        assert (found.other, found.difference) == (other, pytest.approx(0.31 - known[-1][2]))


def test_runs_and_folds_of_one_method_alone_are_left_out(scores: dict[str, np.ndarray]) -> None:
    rows = rows_of("a", scores["a"]) + rows_of("b", scores["b"][1:], runs=[1, 2, 3, 4])
    rows = [row for row in rows if (row.method, row.run, row.fold) != ("b", 4, 2)]
    rows.append(ResultRow("b", "trial", 0, 0, 0, "separated", "map_at_r", 0.9))
    (found,) = compare_all(rows, ["a", "b"])
    assert found.n == 3
    assert found.p == pytest.approx(ttest_rel(scores["a"][1:4].mean(axis=1), scores["b"][1:4].mean(axis=1)).pvalue)


def test_two_common_runs_have_a_difference_only(scores: dict[str, np.ndarray]) -> None:
    (found,) = compare_all(rows_of("a", scores["a"][:2]) + rows_of("b", scores["b"]), ["a", "b"])
    assert found.difference == pytest.approx(scores["a"][:2].mean() - scores["b"][:2].mean())
    assert (found.n, found.low, found.high, found.p, found.p_holm) == (2, None, None, None, None)
    assert not found.shown


def test_a_difference_that_never_varies_has_no_p_and_no_warning() -> None:
    scores = np.array([[0.3] * FOLDS, [0.4] * FOLDS, [0.5] * FOLDS])
    (found,) = compare_all(rows_of("a", scores + 0.1) + rows_of("b", scores), ["a", "b"])
    assert found.difference == pytest.approx(0.1)
    assert (found.n, found.low, found.p, found.shown) == (3, None, None, False)


def test_the_baseline_is_a_fixed_number_and_a_family_of_its_own(scores: dict[str, np.ndarray]) -> None:
    rows = [row for m in scores for row in rows_of(m, scores[m])] + rows_of("pretrained", np.full((1, FOLDS), 0.305))
    found = [c for c in compare_all(rows, list(scores)) if c.kind == OVER_BASELINE]
    assert [(c.method, c.other, c.family, c.n) for c in found] == [(m, "pretrained", 3, 5) for m in scores]
    assert [c.p for c in found] == pytest.approx([ttest_1samp(scores[m].mean(axis=1), 0.305).pvalue for m in scores])
    assert min(c.p_holm for c in found) == pytest.approx(3 * min(c.p for c in found))
    without = compare_all([row for row in rows if row.method != "pretrained"], list(scores))
    assert [c for c in compare_all(rows, list(scores)) if c.kind == PAIR] == without


def test_a_copy_is_compared_with_its_own_loss_outside_the_family(scores: dict[str, np.ndarray]) -> None:
    rows = [row for m in scores for row in rows_of(m, scores[m])]
    second = {"a@2": scores["a"] + 0.02 * scores["b"], "a@3": scores["c"]}
    with_second = compare_all(rows + [r for m in second for r in rows_of(m, second[m])], ["a", "a@2", "a@3", "b", "c"])
    same = [c for c in with_second if c.kind == SECOND_SEARCH]
    assert [(c.method, c.other) for c in same] == [("a@2", "a"), ("a@3", "a"), ("a@3", "a@2")]
    assert all(c.p is not None and c.p_holm is None and not c.shown for c in same)
    assert with_second[:3] == compare_all(rows, list(scores))
    assert len(with_second) == 6


def test_a_method_without_scores_counts_in_the_family(scores: dict[str, np.ndarray]) -> None:
    (found,) = compare_all(rows_of("a", scores["a"]) + rows_of("c", scores["c"]), ["a", "b", "c"])
    assert found.family == 3
    assert found.p_holm == pytest.approx(min(1, 3 * found.p))
