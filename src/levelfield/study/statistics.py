"""Means over runs and their confidence."""

import math
from collections.abc import Sequence

SMALLEST_SAMPLE = 3


def mean(values: Sequence[float]) -> float:
    """Mean whose last bit does not depend on the order of `values`.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("the mean of no values is not defined")
    return math.fsum(values) / len(values)


def t_interval(values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Half width of Student's t-interval of the mean of independent runs.

    The interval is mean ± t(1 - (1 - confidence) / 2, n - 1) · s / √n, s the sample standard deviation.

    Args:
        values: One score a run.
        confidence: Coverage, between 0 and 1.

    Returns:
        The half width in the unit of `values`; None for fewer than 3 runs, whose interval would say nothing.
    """
    from scipy.stats import t  # scipy.stats takes a second to import, and `status` needs none of it

    n = len(values)
    if n < SMALLEST_SAMPLE:
        return None
    centre = mean(values)
    variance = math.fsum((value - centre) ** 2 for value in values) / (n - 1)
    return float(t.ppf(0.5 + confidence / 2, n - 1)) * math.sqrt(variance / n)
