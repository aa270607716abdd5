"""Means with intervals; tests of a difference over runs, over searches and over halves; Holm's correction."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np
from jaxtyping import Float

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
        low: Lower end of the interval; NaN with too few runs, or if the difference is the same in every run.
        high: Upper end; NaN if there is none.
        p: Two-sided p-value of no difference; NaN if there is none.
    """

    difference: Float[np.ndarray, " *studies"]
    low: Float[np.ndarray, " *studies"]
    high: Float[np.ndarray, " *studies"]
    p: Float[np.ndarray, " *studies"]


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
    if runs < SMALLEST_SAMPLE:
        return PairedComparison(difference, *[np.full(difference.shape, np.nan)] * 3)
    largest = np.maximum(np.abs(first).max(axis=(-2, -1)), np.abs(second).max(axis=(-2, -1)))
    constant = np.ptp(differences, axis=-1) <= ROUNDING * largest
    test = ttest_1samp(np.where(constant[..., None], np.nan, differences), 0, axis=-1)
    interval = test.confidence_interval(0.95)
    return PairedComparison(difference, interval.low, interval.high, test.pvalue)


def search_variance(groups: Iterable[Sequence[float]]) -> tuple[float, int] | None:
    """The variance of what a search ends at: s² = Σ_g Σ_i (y_gi - mean(y_g))² / Σ_g (n_g - 1).

    y_gi is the score of search i of a method, the mean over its runs and folds, so s² has the luck of the seeds in it.
    A method in one replicate is a group. All groups are taken to have the same variance, because two searches of one
    method say too little alone.

    Args:
        groups: The scores of the searches of each method.

    Returns:
        s² and its degrees of freedom; None if nothing is searched twice, or if all searches of a method are equal.
    """
    several = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in several)
    if all(np.ptp(group) <= ROUNDING * np.abs(group).max() for group in several):
        return None
    squares = math.fsum((value - fmean(group)) ** 2 for group in several for value in group)
    return squares / degrees, degrees


def t_test(difference: float, error: float, degrees: int) -> tuple[float, float, float]:
    """Low and high end of the 95% interval of a difference with this standard error, and the two-sided p-value."""
    from scipy.special import stdtr

    half = t_quantile(degrees) * error
    return difference - half, difference + half, 2 * float(stdtr(degrees, -abs(difference) / error))


def swapped_halves_test(differences: Float[np.ndarray, "cuts 2"]) -> float:
    """The p-value of no difference, from random cuts of the classes whose halves were both tested.

    d_c1 and d_c2 are the differences of two methods on the halves of cut c (each trained on the other half), and

        F = Σ_c (d_c1² + d_c2²) / (2 Σ_c s_c²),  s_c² = (d_c1 - d_c2)² / 2

    has about 2 C and C degrees of freedom: "Combined 5x2 cv F Test" (Alpaydin, 1999), with C cuts for 5 and halves of
    the classes for halves of the samples. Halves of different cuts share classes. A t-test over all of them takes them
    for independent; here only the halves of one cut, which share none, estimate the variance.
    """
    from scipy.special import fdtrc

    variances = (differences[:, 0] - differences[:, 1]) ** 2 / 2
    cuts = len(differences)
    return float(fdtrc(2 * cuts, cuts, (differences**2).sum() / (2 * variances.sum())))


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
