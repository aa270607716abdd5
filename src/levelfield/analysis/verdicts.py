"""The comparisons of a study in plain sentences."""

import math
from collections.abc import Sequence
from dataclasses import replace

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import SMALLEST_SAMPLE, TOO_FEW_RUNS
from levelfield.metrics.table import SHOWN_METRICS
from levelfield.study.spec import StudySpec, first_search

CAVEAT = (
    "Each verdict speaks of the methods at their selected settings: an interval says what other seeds would give, and "
    "does not contain the search's own variance, nor that of other classes."
)


def in_words(comparison: Comparison, second_search: Comparison | None = None) -> str:
    """One sentence; of two methods the better one comes first.

    Args:
        second_search: The largest difference between two searches of one method; the sentence says so if a
            significant difference is not larger.

    Example:
        ArcFace over contrastive: +0.4 points MAP@R, 95% interval -0.1 to +0.9: no difference shown
    """
    if comparison.kind != OVER_BASELINE and comparison.difference < 0:
        comparison = turned(comparison)
    if comparison.kind == SECOND_SEARCH:
        method = first_search(comparison.method)
        return (
            f"two searches of {method} ({comparison.method} and {comparison.other}) differed by "
            f"{amount(comparison).removeprefix('+')}: differences of that size or smaller between two losses can come "
            "from their searches alone"
        )
    found = f"{comparison.method} over {comparison.other}: {amount(comparison)}"
    if comparison.low is None or comparison.high is None or comparison.p_holm is None:
        few = comparison.n < SMALLEST_SAMPLE
        return f"{found}: {TOO_FEW_RUNS if few else f'the same in all {comparison.n} runs, which gives no interval'}"
    p = p_in_words(comparison.p_holm)
    if comparison.shown:
        verdict = f"{comparison.method} is {'better' if comparison.difference > 0 else 'worse'} ({p})"
        if second_search is not None and abs(comparison.difference) <= abs(second_search.difference):
            gap = points(abs(second_search.difference)).lstrip("+")
            verdict += f", by no more than two searches of {first_search(second_search.method)} differed ({gap} points)"
    elif comparison.low > 0 or comparison.high < 0:
        verdict = f"no difference shown, as one of {comparison.family} comparisons may miss zero by chance ({p})"
    else:
        verdict = "no difference shown"
    return f"{found}: {verdict}"


def all_in_words(comparisons: Sequence[Comparison]) -> list[str]:
    """One sentence per comparison, in order."""
    second_searches = [c for c in comparisons if c.kind == SECOND_SEARCH]
    largest = max(second_searches, key=lambda c: abs(c.difference), default=None)
    return [in_words(c, largest) for c in comparisons]


def verdict_lines(rows: Sequence[ResultRow], spec: StudySpec, most_sentences: int | None = None) -> list[str]:
    """The paired comparisons of separated MAP@R in sentences; the page has the other metrics and all intervals.

    Args:
        most_sentences: If more pairs differ significantly, one line per method lists the methods that it beats.
    """
    comparisons = compare_all(rows, list(spec.methods), baselines=spec.baselines, halves=spec.halves)
    sentences = dict(zip(comparisons, all_in_words(comparisons), strict=True))
    pairs = [comparison for comparison in comparisons if comparison.kind == PAIR]
    shown = [sentences[comparison] for comparison in pairs if comparison.shown]
    num_shown = len(shown)
    if most_sentences is not None and num_shown > most_sentences:
        shown = [
            f"Shown, paired over {spec.runs} runs, 5% after Holm's correction over all {len(pairs)} pairs:",
            *better_than(pairs),
        ]
    lines = [*shown, *(sentences[comparison] for comparison in comparisons if comparison.kind == SECOND_SEARCH)]
    if spec.runs >= SMALLEST_SAMPLE and len(pairs) > num_shown:
        lines.append(f"No difference shown between {len(pairs) - num_shown} of {len(pairs)} pairs of methods.")
    return [*lines, CAVEAT] if lines else []


def better_than(pairs: Sequence[Comparison]) -> list[str]:
    """One line per method with the methods that it beats significantly, the method with the most first."""
    worse: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.shown:
            better = pair if pair.difference > 0 else turned(pair)
            worse.setdefault(better.method, []).append(better.other)
    order = sorted(worse, key=lambda method: -len(worse[method]))
    return [f"{method} is better than {', '.join(worse[method])}" for method in order]


def points(fraction: float, decimals: int = 1) -> str:
    """`+0.4`: percentage points with their sign; zero is `+0.0`."""
    return f"{round(100 * fraction, decimals) + 0.0:+.{decimals}f}"


def amount(comparison: Comparison) -> str:
    """Difference and interval, with enough decimals (up to 3) to show the signs of the ends."""
    ends = [end for end in (comparison.low, comparison.high) if end is not None]
    decimals = next((d for d in (1, 2) if all(round(100 * end, d) != 0 for end in ends)), 3)
    interval = ", 95% interval " + " to ".join(points(end, decimals) for end in ends) if ends else ""
    title = SHOWN_METRICS.get(comparison.metric, comparison.metric)
    return f"{points(comparison.difference, decimals)} points {title}{interval}"


def p_in_words(p: float) -> str:
    """The p-value, cut off and not rounded, so that 0.0499 is not shown as 0.050."""
    return "Holm's p < 0.001" if p < 0.001 else f"Holm's p = {math.floor(1000 * p) / 1000:.3f}"


def turned(c: Comparison) -> Comparison:
    """The same comparison with the methods exchanged."""
    low, high = (None if end is None else -end for end in (c.high, c.low))
    return replace(c, method=c.other, other=c.method, difference=-c.difference, low=low, high=high)
