"""Ranks of methods over several data sets, as in scikit-posthocs, with scipy only."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from levelfield.analysis.statistics import LEVEL
from levelfield.core.errors import UserError

FEWEST_METHODS, FEWEST_DATASETS = 3, 2


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over data sets; 1 is the best.

    Args:
        mean_ranks: Mean rank by method, the best first; equal scores share a rank.
        datasets: The data sets.
        p: Friedman's test that no method ranks better than another.
        critical_difference: Mean ranks that differ by at least this differ significantly at 5%, over all pairs.
    """

    mean_ranks: dict[str, float]
    datasets: tuple[str, ...]
    p: float
    critical_difference: float

    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of methods, adjacent in rank, that do not differ significantly."""
        methods, ranks = list(self.mean_ranks), list(self.mean_ranks.values())
        found: list[tuple[int, int]] = []
        for start, rank in enumerate(ranks):
            end = sum(other - rank < self.critical_difference for other in ranks)
            if end - start > 1 and (not found or end > found[-1][1]):
                found.append((start, end))
        return [tuple(methods[start:end]) for start, end in found]


def rank_methods(scores: Mapping[str, Mapping[str, float]]) -> Ranks:
    """Rank the methods that all data sets have.

    With N data sets and k methods, Friedman's test and Nemenyi's critical difference CD = q √(k (k + 1) / (6 N)), q
    being the 95% quantile of the studentized range of k and infinitely many degrees of freedom over √2 (Demšar, 2006).
    Both hold for many data sets and are conservative for few.

    Args:
        scores: Data set to method to score; higher is better.

    Raises:
        UserError: fewer than 2 data sets or fewer than 3 common methods.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    common = [m for m in next(iter(scores.values()), {}) if all(m in by_method for by_method in scores.values())]
    if len(scores) < FEWEST_DATASETS or len(common) < FEWEST_METHODS:
        raise UserError(
            f"ranks need at least {FEWEST_DATASETS} data sets with {FEWEST_METHODS} methods in common; "
            f"{', '.join(scores) or 'no data set'} have in common: {', '.join(common) or 'none'}"
        )
    table = np.array([[by_method[method] for method in common] for by_method in scores.values()])
    ranks = rankdata(-table, axis=1).mean(axis=0)
    datasets, k = table.shape
    q = float(studentized_range.ppf(1 - LEVEL, k, np.inf)) / 2**0.5
    best_first = np.argsort(ranks, kind="stable")
    varied = np.ptp(table, axis=1).any()
    return Ranks(
        mean_ranks={common[i]: float(ranks[i]) for i in best_first},
        datasets=tuple(scores),
        p=float(friedmanchisquare(*table.T).pvalue) if varied else 1.0,
        critical_difference=q * (k * (k + 1) / (6 * datasets)) ** 0.5,
    )
