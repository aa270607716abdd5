"""How far two orders of the same methods agree."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from levelfield.analysis.statistics import LEVEL

FEWEST = 5


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b of two orders, with its 95% interval and the two-sided p-value of no agreement."""

    tau: float
    low: float
    high: float
    p: float
    n: int


def kendall(first: Mapping[str, float], second: Mapping[str, float]) -> Agreement:
    """Kendall's tau-b over the methods that both have.

    The interval is that of Fisher's z, whose variance for a tau of n pairs is 0.437 / (n - 4) (Fieller, Hartley and
    Pearson 1957, Tests for rank correlation coefficients I): of n methods drawn from many, so it is wide for 14. It
    is said for taus up to 0.8, and is the better the farther the tau is from 1.

    Args:
        first: Method to score.
        second: The same of the other order.

    Raises:
        ValueError: fewer than 5 methods in common.
    """
    from scipy.stats import kendalltau, norm  # scipy.stats takes a second to import

    common = [method for method in first if method in second]
    if (n := len(common)) < FEWEST:
        raise ValueError(f"an interval of Kendall's tau needs {FEWEST} methods in common, not {n}")
    found = kendalltau([first[method] for method in common], [second[method] for method in common])
    tau = round(float(found.statistic), 12)
    if abs(tau) == 1:  # Fisher's z has no value there
        return Agreement(tau, tau, tau, float(found.pvalue), n)
    reach = float(norm.ppf(1 - LEVEL / 2)) * math.sqrt(0.437 / (n - 4))
    low, high = (math.tanh(math.atanh(tau) + side * reach) for side in (-1, 1))
    return Agreement(tau, low, high, float(found.pvalue), n)
