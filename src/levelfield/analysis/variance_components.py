"""How much of a score's variance is the search's, the seed's and the fold's."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from levelfield.analysis.statistics import LEVEL

COMPONENTS = ("search", "seed", "fold", "fold x setting", "residual")


@dataclass(frozen=True)
class VarianceComponents:
    """Standard deviations of what makes scores differ, in the scores' unit, by the names in `COMPONENTS`.

    Args:
        sd: Estimates.
        low: Lower ends of their 95% intervals.
        high: Upper ends.
    """

    sd: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]


def variance_components(scores: Float[np.ndarray, "methods searches runs folds"]) -> VarianceComponents:
    """Fit a linear mixed model to methods that were searched several times and run on the same folds.

        y_msrf = method_m + search_ms + seed_msr + fold_f + (fold x setting)_msf + residual_msrf

    The method is fixed, all else random: what another search gives the same method, what another seed gives a setting
    on all folds alike, what a fold does to all settings, what it does to one, and what a seed does on one fold alone.
    All combinations are there, so the restricted-maximum-likelihood estimates are those of the mean squares wherever
    none of these would be negative (Searle, Casella and McCulloch 1992, Variance Components, section 4.8); a negative
    one is 0.

    Intervals are the modified large-sample ones of sums of mean squares (Ting et al. 1990; Burdick and Graybill 1992,
    Confidence Intervals on Variance Components, section 3.3, without cross terms). Two searches of three methods leave
    the search 3 degrees of freedom, four folds the fold as many: theirs are as wide as they should be.

    Args:
        scores: y; at least two of each but methods.
    """
    from scipy.special import chdtri  # what a chi-squared variable exceeds with a probability

    methods, searches, runs, folds = scores.shape
    if min(searches, runs, folds) < 2:
        raise ValueError(f"scores (methods, searches, runs, folds) of {scores.shape}: all but methods need 2 or more")
    squares, degrees = _mean_squares(scores)
    settings = methods * searches
    # A row a component, a column a mean square: their expectations, solved for the components.
    weights = np.array(
        [
            np.array([1, -1, 0, -1, 1]) / (runs * folds),
            np.array([0, 1, 0, 0, -1]) / folds,
            np.array([0, 0, 1, -1, 0]) / (settings * runs),
            np.array([0, 0, 0, 1, -1]) / runs,
            [0, 0, 0, 0, 1],
        ]
    )
    parts = weights * squares
    down, up = 1 - degrees / chdtri(degrees, LEVEL / 2), degrees / chdtri(degrees, 1 - LEVEL / 2) - 1
    below = np.sqrt(np.sum((np.where(parts > 0, down, up) * parts) ** 2, axis=1))
    above = np.sqrt(np.sum((np.where(parts > 0, up, down) * parts) ** 2, axis=1))
    variances = parts.sum(axis=1)
    ends = (np.sqrt(np.maximum(each, 0)) for each in (variances, variances - below, variances + above))
    return VarianceComponents(*(dict(zip(COMPONENTS, each.tolist(), strict=True)) for each in ends))


def _mean_squares(y: Float[np.ndarray, "methods searches runs folds"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean squares of the balanced design in the order of `COMPONENTS`, and their degrees of freedom."""
    methods, searches, runs, folds = y.shape
    settings = methods * searches

    def mean(*axes: int) -> Float[np.ndarray, "methods searches runs folds"]:
        return np.broadcast_to(y.mean(axis=axes, keepdims=True), y.shape)

    setting, run, fold, both = mean(2, 3), mean(3), mean(0, 1, 2), mean(2)
    deviations = [setting - mean(1, 2, 3), run - setting, fold - y.mean(), both - setting - fold + y.mean()]
    deviations.append(y - run - both + setting)
    degrees = [settings - methods, settings * (runs - 1), folds - 1]
    degrees += [(settings - 1) * (folds - 1), settings * (runs - 1) * (folds - 1)]
    sums = np.array([np.sum(deviation**2) for deviation in deviations])
    return sums / degrees, np.array(degrees, dtype=float)
