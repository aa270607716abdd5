"""One plain sentence for each comparison of two methods."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import SMALLEST_SAMPLE, TOO_FEW_RUNS
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.study.spec import StudySpec, first_search

CAVEAT = (
    "The intervals say how scores vary with the seed. They do not cover the luck of the search or other test classes."
)
SEEDS_ONLY = "The intervals hold for other seeds, not for another search (second_searches) or other test classes."


def caveat(spec: StudySpec) -> str:
    """What the intervals do not cover: `SEEDS_ONLY` if methods are searched and none of them twice."""
    once = any(map(spec.trials, spec.methods)) and all(first_search(method) == method for method in spec.methods)
    return SEEDS_ONLY if once and spec.runs >= SMALLEST_SAMPLE else CAVEAT


def in_words(comparison: Comparison, second_search: Comparison | None = None) -> str:
    """One sentence; of two methods the better one comes first.

    Args:
        second_search: The largest difference of two searches of one method. The sentence says so if a significant
            difference is no larger.

    Example:
        arcface is not significantly better than contrastive: +0.4 points MAP@R, 95% interval -0.1 to +0.9
    """
    if comparison.kind != OVER_BASELINE and comparison.difference < 0:
        comparison = turned(comparison)
    if comparison.kind == SECOND_SEARCH:
        return (
            f"two searches of {first_search(comparison.method)} ({comparison.method} and {comparison.other}) differ by "
            f"{amount(comparison).removeprefix('+')}: smaller differences between methods may come from their searches"
        )
    if comparison.low is None or comparison.high is None or comparison.p_holm is None:
        few = comparison.n < SMALLEST_SAMPLE
        reason = TOO_FEW_RUNS if few else f"no interval, the same in all {comparison.n} runs"
        return f"{comparison.method} over {comparison.other}: {amount(comparison)}, {reason}"
    order = f"significantly {'worse' if comparison.difference < 0 else 'better'} than {comparison.other}"
    sentence = f"{comparison.method} is {'' if comparison.shown else 'not '}{order}: {amount(comparison)}"
    if comparison.shown or comparison.low > 0 or comparison.high < 0:
        sentence += f", {p_in_words(comparison.p_holm)} over {comparison.family} comparisons"
    if comparison.shown and second_search is not None and abs(comparison.difference) <= abs(second_search.difference):
        gap = points(abs(second_search.difference)).lstrip("+")
        sentence += f"; two searches of {first_search(second_search.method)} differ by as much ({gap} points)"
    return sentence


def all_in_words(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence for each comparison, in order."""
    second_searches = [c for c in comparisons if c.kind == SECOND_SEARCH]
    largest = max(second_searches, key=lambda c: abs(c.difference), default=None)
    return [in_words(c, largest) for c in comparisons]


def verdict_lines(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """The significant differences in separated MAP@R; the page has all metrics and all pairs."""
    comparisons = compare_all(rows, list(spec.methods), baselines=spec.baselines, halves=spec.halves)
    sentences = dict(zip(comparisons, all_in_words(comparisons), strict=True))
    pairs = [comparison for comparison in comparisons if comparison.kind == PAIR]
    shown = [sentences[comparison] for comparison in pairs if comparison.shown]
    lines = [*shown, *(sentences[comparison] for comparison in comparisons if comparison.kind == SECOND_SEARCH)]
    if spec.runs >= SMALLEST_SAMPLE and len(pairs) > len(shown):
        lines.append(f"{len(pairs) - len(shown)} of {len(pairs)} pairs of methods do not differ significantly.")
    return [*lines, caveat(spec)] if lines else []


def better_than(pairs: Sequence[Comparison]) -> list[str]:
    """One sentence for each method that is significantly better than another; the one that beats most comes first."""
    worse: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.shown:
            better = pair if pair.difference > 0 else turned(pair)
            worse.setdefault(better.method, []).append(better.other)
    order = sorted(worse, key=lambda method: -len(worse[method]))
    return [f"{method} is significantly better than {', '.join(worse[method])}" for method in order]


def points(fraction: float, decimals: int = 1) -> str:
    """`+0.4`: percentage points with their sign; zero is `+0.0`."""
    return f"{round(100 * fraction, decimals) + 0.0:+.{decimals}f}"


def amount(comparison: Comparison) -> str:
    """Difference and interval, with enough decimals (at most 3) to show on which side of zero the ends are."""
    ends = [end for end in (comparison.low, comparison.high) if end is not None]
    decimals = next((d for d in (1, 2) if all(round(100 * end, d) != 0 for end in ends)), 3)
    interval = ", 95% interval " + " to ".join(points(end, decimals) for end in ends) if ends else ""
    title = SHOWN_METRICS.get(comparison.metric, comparison.metric)
    return f"{points(comparison.difference, decimals)} points {title}{interval}"


def p_in_words(p: float) -> str:
    """Holm's p-value, cut off instead of rounded, so that 0.0499 reads as significant."""
    return "Holm's p < 0.001" if p < 0.001 else f"Holm's p = {math.floor(1000 * p) / 1000:.3f}"


def named(c: Comparison, names: Mapping[str, str]) -> Comparison:
    """The same comparison with the rows' names for readers, `shown_names`."""
    return replace(c, method=names[c.method], other=names[c.other])


def turned(c: Comparison) -> Comparison:
    """The same comparison with the methods exchanged."""
    low, high = (None if end is None else -end for end in (c.high, c.low))
    return replace(c, method=c.other, other=c.method, difference=-c.difference, low=low, high=high)
