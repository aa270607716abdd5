"""Means over runs with intervals, paired comparisons of methods, and Holm's correction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np
from jaxtyping import Bool, Float

SMALLEST_SAMPLE = 3
# Significance level.
LEVEL = 0.05
TOO_FEW_RUNS = "too few runs for an interval"
# Relative to the largest score: smaller spreads of the differences are rounding.
ROUNDING = 1e-12


@cache
def t_quantile(degrees: int) -> float:
    """The bound that |t| does not exceed with probability 95%, for Student's t with these degrees of freedom."""
    from scipy.special import stdtrit  # slow to import, and `study status` does not need it

    return float(stdtrit(degrees, 0.975))


def t_interval(values: Sequence[float]) -> float | None:
    """Half width of Student's t-interval of the mean of independent runs.

    The interval is mean ± t(0.975, n - 1) · s / √n, s the sample standard deviation. The ends from scipy would change
    the last bit of the half width in `summary.csv`.

    Returns:
        The half width in the unit of `values`; None for fewer than 3 runs.
    """
    n = len(values)
    if n < SMALLEST_SAMPLE:
        return None
    centre = fmean(values)
    variance = math.fsum((value - centre) ** 2 for value in values) / (n - 1)
    return t_quantile(n - 1) * math.sqrt(variance / n)


@dataclass(frozen=True)
class PairedComparison:
    """Mean difference of two methods with its 95% interval, one per study.

    Args:
        difference: Mean over the runs of the first method's score minus the second's.
        low: Lower end of the interval; NaN if there is none.
        high: Upper end; NaN if there is none.
        p: Two-sided p-value of no difference; NaN if there is none.
        constant: Whether the difference is the same in every run: then there is no interval and no p.
    """

    difference: Float[np.ndarray, " *studies"]
    low: Float[np.ndarray, " *studies"]
    high: Float[np.ndarray, " *studies"]
    p: Float[np.ndarray, " *studies"]
    constant: Bool[np.ndarray, " *studies"]


def paired_comparison(
    first: Float[np.ndarray, "*studies runs folds"], second: Float[np.ndarray, "*studies runs folds"]
) -> PairedComparison:
    """Compare two methods over runs with the same numbers (and so seeds) and folds.

    d_r is the mean difference over the folds of run r, n the number of runs, s the standard deviation of the d_r:

        t = mean(d) / (s / √n),  n - 1 degrees of freedom;  interval: mean(d) ± t(0.975, n - 1) · s / √n.

    The run is the unit. The folds of a run share training classes, test classes and the seed, so their scores are not
    independent. Counting them as independent finds far too many differences. The mean over the folds leaves one number
    per run, and runs are independent. Effects of a fold on both methods cancel in the difference.

    The corrected resampled t-test (Nadeau and Bengio, 2003) estimates the correlation of folds whose test parts differ.
    Here all folds have the same test classes, and runs with fresh seeds make the estimate unnecessary.

    The interval says how scores vary with the seed, for these classes, folds and settings.

    Args:
        first: Scores of one method; one fold for concatenated embeddings.
        second: Scores of the other, in the same shape, or one run of a method without randomness.

    Raises:
        ValueError: the shapes do not match.
    """
    from scipy.stats import ttest_1samp  # `ttest_rel` would take differences after the mean over folds

    if first.shape[-1] != second.shape[-1] or second.shape[-2] not in (1, first.shape[-2]):
        raise ValueError(f"scores (runs, folds) of {first.shape} and {second.shape} cannot be paired")
    differences = (first - second).mean(axis=-1)
    runs = differences.shape[-1]
    difference = differences.mean(axis=-1)
    largest = np.maximum(np.abs(first).max(axis=(-2, -1)), np.abs(second).max(axis=(-2, -1)))
    constant = np.ptp(differences, axis=-1) <= ROUNDING * largest
    if runs < SMALLEST_SAMPLE:
        nothing = np.full(difference.shape, np.nan)
        return PairedComparison(difference, nothing, nothing, nothing, constant)
    test = ttest_1samp(np.where(constant[..., None], np.nan, differences), 0, axis=-1)
    interval = test.confidence_interval(0.95)
    return PairedComparison(difference, interval.low, interval.high, test.pvalue, constant)


def holm(p: Float[np.ndarray, "*studies comparisons"]) -> Float[np.ndarray, "*studies comparisons"]:
    """Holm's adjusted p-values: if those below α count as significant, the family has an error with probability <= α.

    With m p-values in ascending order, adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). A comparison
    without a p-value (NaN) keeps NaN and counts in m.
    """
    family = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")  # NaN last
    stepped = np.take_along_axis(p, order, axis=-1) * np.arange(family, 0, -1)
    stepped = np.minimum(np.maximum.accumulate(stepped, axis=-1), 1)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, stepped, axis=-1)
    return adjusted
