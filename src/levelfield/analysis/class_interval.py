"""Is embedding A better than B on unseen classes? The difference of their scores with an interval over classes.

The estimand is the expected difference on a fresh draw of K classes, whose items are the gallery. The w_j queries of
class j have the summed difference w_j d_j, which changes by w_j D_ij when class i leaves the gallery; W = Σ w_j:

    T       = Σ_j w_j d_j / W                            T_-i   = Σ_{j≠i} w_j (d_j + D_ij) / (W - w_i)
    V_fixed = K / (K-1) Σ_i (w_i (d_i - T) / W)²         V_jack = (K-1) / K Σ_i (T_-i - mean)²
    u_ij    = -K (w_j D_ij + w_i D_ji) / W               s²     = residual variance of u_ij = m + r_i + r_j + e_ij
    V       = max(V_fixed, V_jack - s² (K-1) / (2K))     interval: T ± t(0.975, K-1) √V

V_fixed takes the gallery as given. The jackknife also counts what a class does to the others, but counts what happens
between two classes twice; the last term corrects that (Efron and Stein, "The jackknife estimate of variance", 1981).

Shapes: N items, K classes, L neighbours of a query, H of them of its class, C other classes among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from levelfield.analysis.statistics import t_quantile
from levelfield.metrics.definitions import SELECTED_BY, SHOWN_METRICS

FEWEST_CLASSES = 8
# With fewer classes that differ a sign test cannot reach 5%, because 2^(1 - 5) is above it.
FEWEST_DIFFERENT = 6
EQUAL = 1e-9  # sums of scores that differ by less are equal up to rounding


@dataclass(frozen=True)
class ClassScores:
    """Scores of the queries of each class, or the difference of two such.

    Args:
        sums_K: Sum over the queries of a class.
        queries_K: Number of its queries that have a match.
        changes_KK: Change of the sum of class j (column) without class i (row) in the gallery, as a sparse matrix; None
            takes the gallery as given.
    """

    sums_K: Float[np.ndarray, " classes"]
    queries_K: Int[np.ndarray, " classes"]
    changes_KK: Any = None

    def __sub__(self, other: "ClassScores") -> "ClassScores":
        known = self.changes_KK is not None and other.changes_KK is not None
        changes = self.changes_KK - other.changes_KK if known else None
        return ClassScores(self.sums_K - other.sums_K, self.queries_K, changes)

    @property
    def mean(self) -> float:
        """T: the score over all queries."""
        return float(self.sums_K.sum() / self.queries_K.sum())

    def variance(self) -> float:
        """V of the module's formulas; V_fixed without `changes_KK`."""
        num, total, weights_K = len(self.sums_K), self.queries_K.sum(), self.queries_K.astype(float)
        fixed = num / (num - 1) * np.square((self.sums_K - self.mean * weights_K) / total).sum()
        if self.changes_KK is None:
            return float(fixed)
        without_K, of_own_K = (np.asarray(self.changes_KK.sum(axis=axis)).ravel() for axis in (1, 0))
        left_K = (self.sums_K.sum() - self.sums_K + without_K) / (total - weights_K)
        jackknife = (num - 1) / num * np.square(left_K - left_K.mean()).sum()
        # The least-squares fit of u_ij, i < j: most pairs have no change.
        shares = -num / total * (self.changes_KK + self.changes_KK.T)
        ends_K = -num / total * (without_K + of_own_K)
        pairs = num * (num - 1) / 2
        middle = ends_K.sum() / 2 / pairs
        main_K = (ends_K - (num - 1) * middle) / (num - 2)
        squares = shares.power(2).sum() / 2 - pairs * middle**2 - (num - 2) * np.square(main_K).sum()
        twice = max(squares, 0.0) / (num * (num - 3) / 2) * (num - 1) / (2 * num)
        return float(max(fixed, jackknife - twice))


@dataclass(frozen=True)
class ClassInterval:
    """A difference with its 95% interval over draws of as many classes, as fractions.

    Args:
        low: NaN with too few classes, or too few that differ.
        needed: Half the interval: a smaller difference cannot be told from none.
    """

    difference: float
    low: float
    high: float
    needed: float
    classes: int

    @property
    def is_better(self) -> bool:
        return self.low > 0


def class_interval(difference: ClassScores) -> ClassInterval:
    """The interval of a difference of two checkpoints: other trainings of them would add to it."""
    classes, mean = int((difference.queries_K > 0).sum()), difference.mean
    different = np.count_nonzero(np.abs(difference.sums_K) > EQUAL)
    if classes < FEWEST_CLASSES or different < FEWEST_DIFFERENT:
        return ClassInterval(mean, np.nan, np.nan, np.nan, classes)
    half = t_quantile(classes - 1) * difference.variance() ** 0.5
    return ClassInterval(mean, mean - half, mean + half, half, classes)


def in_words(found: ClassInterval, one: str, other: str) -> str:
    """One of three answers: the first is better, the second is, or the classes are too few to tell."""
    title, of_classes = SHOWN_METRICS[SELECTED_BY], f"{found.classes} unseen classes"
    points, low, high = (round(100 * value, 1) + 0.0 for value in (found.difference, found.low, found.high))
    if np.isnan(found.low):
        few = f"they differ in fewer than {FEWEST_DIFFERENT} classes or there are fewer than {FEWEST_CLASSES}"
        return f"cannot tell {one} from {other} by {title}: {few}"
    if found.is_better or found.high < 0:
        if not found.is_better:
            one, other, points, low, high = other, one, -points, -high + 0.0, -low + 0.0
        be = "are" if one.startswith("the features") else "is"
        return f"{one} {be} better than {other} by {points} points {title} [{low}, {high}] on {of_classes}"
    return (
        f"cannot tell {one} from {other} with {of_classes}: {points:+} points {title} [{low:+}, {high:+}]; the "
        f"difference would have to be at least {100 * found.needed:.1f}"
    )


def from_sums(stored: Sequence[Sequence[float]]) -> ClassScores:
    """The scores that `levelfield.study.test_scores.class_sums` stored, with the gallery as given."""
    sums_K, queries_K = np.array(stored, float).T
    return ClassScores(sums_K, queries_K.astype(int))


def class_scores(near_NL: Int[np.ndarray, "items neighbours"], labels_N: Int[np.ndarray, " items"]) -> ClassScores:
    """Exact MAP@R of each class and its changes without each other class, from one list of neighbours.

    Args:
        near_NL: Numbers of the nearest others of each item, nearest first: at least `neighbours_needed`, or all.
        labels_N: The classes.
    """
    from scipy.sparse import coo_matrix

    _, classes_N, counts_K = np.unique(labels_N, return_inverse=True, return_counts=True)
    num = len(counts_K)
    sums_K, cells = np.zeros(num), list[tuple[int, int, float]]()
    for item, own in enumerate(classes_N):
        if counts_K[own] == 1:
            continue
        near_L = classes_N[near_NL[item]]
        score, others_C, changes_C = _without_each(near_L, near_L == own, counts_K[own] - 1)
        sums_K[own] += score
        cells += [(other, own, change) for other, change in zip(others_C, changes_C, strict=True) if change]
    removed, changed, values = zip(*cells, strict=True) if cells else ((), (), ())
    changes = coo_matrix((values, (removed, changed)), (num, num)).tocsr()  # sums what it has twice
    return ClassScores(sums_K, np.where(counts_K > 1, counts_K, 0), changes)


def neighbours_needed(labels_N: Int[np.ndarray, " items"]) -> int:
    """Neighbours that any query needs: R, and as many as the largest class takes away."""
    return 2 * int(np.unique(labels_N, return_counts=True)[1].max()) - 1


def _without_each(
    near_L: Int[np.ndarray, " L"], hits_L: Bool[np.ndarray, " L"], places: int
) -> tuple[float, Int[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """The score within the first `places`, the other classes, and the score's change without each.

    MAP@R is Σ_k [place_k <= R] k / place_k / R over the hits k; without a class, each hit moves up by the items of that
    class before it.
    """
    hits_H = hits_L.nonzero()[0]
    rank_H = np.arange(1, len(hits_H) + 1)
    score = (rank_H / (hits_H + 1) * (hits_H < places)).sum() / places
    others_C, slots = np.unique(near_L[~hits_L], return_inverse=True)
    is_of_LC = np.zeros((len(near_L), len(others_C)), np.int32)
    is_of_LC[~hits_L, slots] = 1
    moved_HC = hits_H[:, None] + 1 - is_of_LC.cumsum(axis=0)[hits_H]
    without_C = np.where(moved_HC <= places, rank_H[:, None] / moved_HC, 0.0).sum(axis=0) / places
    return float(score), others_C, without_C - score
