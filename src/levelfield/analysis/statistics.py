"""Means over runs and their confidence, paired comparisons of methods, and the correction for many of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np
from jaxtyping import Bool, Float

SMALLEST_SAMPLE = 3
# The probability of an error that a verdict takes.
LEVEL = 0.05
TOO_FEW_RUNS = "too few runs for an interval"
# Of the largest score: differences closer than this differ by rounding alone.
ROUNDING = 1e-12


@cache
def t_quantile(degrees: int) -> float:
    """What Student's t with these degrees of freedom stays below in absolute value with probability 95%."""
    from scipy.special import stdtrit  # scipy takes a while to import, and `status` needs none of it

    return float(stdtrit(degrees, 0.975))


def t_interval(values: Sequence[float]) -> float | None:
    """Half width of Student's t-interval of the mean of independent runs.

    The interval is mean ± t(0.975, n - 1) · s / √n, s the sample standard deviation. By hand, for
    scipy's ends give another last bit of the half width, which `summary.csv` holds.

    Returns:
        The half width in the unit of `values`; None for fewer than 3 runs, whose interval would say nothing.
    """
    n = len(values)
    if n < SMALLEST_SAMPLE:
        return None
    centre = fmean(values)
    variance = math.fsum((value - centre) ** 2 for value in values) / (n - 1)
    return t_quantile(n - 1) * math.sqrt(variance / n)


@dataclass(frozen=True)
class PairedComparison:
    """Mean difference of two methods with its 95% interval, one a study.

    Args:
        difference: Mean over the runs of the first method's score less the second's.
        low: Lower end of the interval; NaN where there is none.
        high: Upper end; NaN where there is none.
        p: Two-sided p-value of no difference; NaN where there is none.
        constant: Whether the difference is the same in every run, so that there is neither interval nor p.
    """

    difference: Float[np.ndarray, " *studies"]
    low: Float[np.ndarray, " *studies"]
    high: Float[np.ndarray, " *studies"]
    p: Float[np.ndarray, " *studies"]
    constant: Bool[np.ndarray, " *studies"]


def paired_comparison(
    first: Float[np.ndarray, "*studies runs folds"], second: Float[np.ndarray, "*studies runs folds"]
) -> PairedComparison:
    """Compare two methods over runs that share their number (and so their seed) and their folds.

    With d_r the mean over the folds of run r of the differences, n runs and s the standard deviation of the d_r,

        t = mean(d) / (s / √n),  n - 1 degrees of freedom;  interval: mean(d) ± t(0.975, n - 1) · s / √n.

    The run is the unit. Any two of F folds train on F - 2 common blocks of F - 1, and are scored on the same test
    classes from the same seed, so the scores of a run rise and fall together: to take its folds for F independent ones
    understates s and calls equal methods different far too often. Averaging over the folds first leaves one number a
    run, and runs are independent whatever happens among the folds. What a fold does to every method cancels in the
    difference.

    The corrected resampled t-test (Nadeau and Bengio, 2003) guesses the folds' correlation from the sizes of training
    and test part. Here each method is run again with fresh seeds, so nothing needs guessing; and its guess is for test
    parts that differ from split to split, where ours are one and the same.

    The interval is for these classes, these folds and these settings: it says what other seeds would give.

    Args:
        first: Scores of one method; one fold where the folds' embeddings were scored together.
        second: Scores of the other, same shape; one run that repeats for a method without randomness.

    Raises:
        ValueError: the shapes do not match.
    """
    from scipy.stats import ttest_1samp  # of the differences: `ttest_rel` would take them after the folds' mean

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
    """Holm's adjusted p-values: rejecting those below α errs anywhere in the family with probability at most α.

    With p sorted upwards and m of them, adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). A comparison
    without a p-value (NaN) stays without one and counts as one of the family that shows nothing.
    """
    family = p.shape[-1]
    order = np.argsort(p, axis=-1, kind="stable")  # NaN last
    stepped = np.take_along_axis(p, order, axis=-1) * np.arange(family, 0, -1)
    stepped = np.minimum(np.maximum.accumulate(stepped, axis=-1), 1)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, stepped, axis=-1)
    return adjusted
