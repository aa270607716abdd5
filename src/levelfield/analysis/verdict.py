"""A study in plain sentences: whether training pays, the best method, each comparison of two methods, evaluations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, RUNS, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.conditions import cap_lines
from levelfield.analysis.results import ResultRow, SummaryRow, mean_scores
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.statistics import SMALLEST_SAMPLE, TOO_FEW_RUNS
from levelfield.core.files import read_json
from levelfield.core.shape import has_shape
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.study.folder import StudyFolder
from levelfield.study.replicates import replicates_of
from levelfield.study.spec import StudySpec, first_search, is_baseline

DECISION = "decision.json"  # of `levelfield compare`: the row that validation chose, and sentences
MOST_NAMED = 4  # methods listed by name; more are counted
CAVEAT = (
    "The intervals say how scores vary with the seed. They do not cover the luck of the search or other test classes."
)
SEEDS_ONLY = "The intervals hold for other seeds, not for another search (searches: 2) or other test classes."
OTHER_SEARCHES = "The intervals hold for other searches and seeds, not for other test classes (replicates)."
OTHER_HALVES = "The intervals hold for other halves of these classes, searches and seeds, not for another data set."


def conclusion(study: StudyFolder, rows: Sequence[ResultRow]) -> list[str]:
    """The sentences below the table and at the top of the page: the decision of `levelfield compare`, or a verdict."""
    chosen = decided(study)
    cap = [f", and {sentence}" for sentence in cap_lines(study)] or ["."]
    count = len({line["id"] for each in replicates_of(study) for line in each.evaluations()})
    times = f"were evaluated {'once' if count == 1 else f'{count} times'}" if count else "have not been evaluated"
    found = verdict(rows, study.spec) if chosen is None else chosen["sentences"]
    return [*found, f"The test classes {times}{cap[0]}"]


def decided(study: StudyFolder) -> Mapping[str, Any] | None:
    """The content of `decision.json`; None without one, or if it was made for other rows or runs."""
    found = read_json(study.folder / DECISION)
    is_whole = has_shape(found, {"of": str, "row": str, "sentences": [str]}) and found["row"] in study.spec.rows
    return found if is_whole and found["of"] == study.spec.configuration_hash() else None


def verdict(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """Whether the best method beats the best untrained row, then its rivals; by separated test MAP@R."""
    means, names, methods = _means(rows), shown_names(spec), _first_searches(spec)
    if not set(methods) & set(means):
        return ["No method has test scores yet."]
    best = best_method(rows, spec)
    found = compare_all(rows, methods, baselines=baselines_of(means, spec), halves=spec.halves, planned=spec.compare)
    pairs = [each for each in found if each.kind == PAIR and best in (each.method, each.other)]
    rivals = [each.other if each.method == best else each.method for each in pairs if not each.shown]
    rivals = [names[each] for each in sorted(rivals, key=lambda method: -means[method].mean)]
    ci95, untested = means[best].ci95, all(each.p is None for each in pairs)
    score = f"{100 * means[best].mean:.1f}{'' if ci95 is None else f' ± {100 * ci95:.1f}'} percent"
    highest = f"{names[best]} has the highest MAP@R on unseen classes, {score}"
    if not pairs:
        first = f"{names[best]} has {score} MAP@R on unseen classes."
    elif not rivals:
        others = "the other method" if len(pairs) == 1 else f"all {len(pairs)} other methods"
        first = f"{names[best]} has the best MAP@R on unseen classes, {score}, significantly above {others}."
    elif untested and means[best].n >= SMALLEST_SAMPLE:
        same = "score" if all(each.difference == 0 for each in pairs) else "difference"
        first = f"{highest}, with the same {same} in every run."
    elif untested:
        first = f"{highest}, with too few runs to rule out chance."
    elif len(rivals) > MOST_NAMED:
        first = f"{highest}, but {len(rivals)} of {len(pairs)} other methods may be as good."
    else:
        listed = " and ".join(filter(None, [", ".join(rivals[:-1]), rivals[-1]]))
        first = f"{highest}, but {listed} may be as good."
    return [*_training(best, found, names), first, *[SEEDS_ONLY] * (caveat(spec) == SEEDS_ONLY)]


def _training(best: str, found: Sequence[Comparison], names: Mapping[str, str]) -> list[str]:
    """Whether the best method beats the best untrained row, and how many methods are above or below it."""
    over = [each for each in found if each.kind == OVER_BASELINE]
    own = next((each for each in over if each.method == best), None)
    if own is None:
        return []
    if own.p is None:
        pays = "Training may pay" if own.difference > 0 else "Training may not pay"
    elif own.shown:
        pays = "Training pays" if own.difference > 0 else "Training does not pay"
    elif any(each.shown and each.difference > 0 for each in over):  # the best one varies more than another
        pays = "Training may pay"
    else:
        pays = "Training brings no significant gain"
    points, where = 100 * abs(own.difference), "above" if own.difference > 0 else "below"
    gap = f"{points:.{1 if points >= 0.05 else 2}f} points {where} the best untrained row ({names[own.other]})"
    sentences = [f"{pays}: {names[best]} is {gap}."]
    same = [each for each in over if each.other == own.other]
    if len(same) > 1 and own.p is None:
        sentences.append(f"{sum(each.difference > 0 for each in same)} of {len(same)} methods end above it.")
    elif len(same) > 1:
        for where, sign in (("above", 1), ("below", -1)):
            count = sum(each.shown and sign * each.difference > 0 for each in same)
            sentences += [f"{count} of {len(same)} methods are significantly {where} it."] * (count > 0)
    return [" ".join(sentences)]


def _first_searches(spec: StudySpec) -> list[str]:
    """The trained methods; `arcface@2` is compared with `arcface` only."""
    return [method for method in spec.methods if not is_baseline(method) and method == first_search(method)]


def _means(rows: Sequence[ResultRow]) -> dict[str, SummaryRow]:
    """`mean_scores`; of a method with several searches, the mean over them, without an interval."""
    found: dict[str, list[SummaryRow]] = {}
    for row, score in mean_scores(rows).items():
        found.setdefault(first_search(row), []).append(score)
    mean = {row: fmean(score.mean for score in scores) for row, scores in found.items()}
    return {row: replace(s[0], mean=mean[row], ci95=None) if len(s) > 1 else s[0] for row, s in found.items()}


def best_method(rows: Sequence[ResultRow], spec: StudySpec) -> str:
    """The trained method with the highest test MAP@R, the mean of its searches."""
    means = _means(rows)
    return max(sorted(set(_first_searches(spec)) & set(means)), key=lambda method: means[method].mean)


def best_untrained(means: Mapping[str, SummaryRow], spec: StudySpec, method: str) -> str | None:
    """The untrained row with the highest test MAP@R on the same test classes as `method`."""
    same = [row for row in means if is_baseline(row) and spec.halves.get(row) == spec.halves.get(method)]
    return max(same, key=lambda row: means[row].mean, default=None)


def baselines_of(means: Mapping[str, SummaryRow], spec: StudySpec) -> dict[str, str]:
    """Trained row to the best untrained row on the same test classes."""
    return {row: best_untrained(means, spec, row) or usual for row, usual in spec.baselines.items()}


def caveat(spec: StudySpec) -> str:
    """What the intervals cover, and what they do not."""
    if spec.replicates >= SMALLEST_SAMPLE:
        return OTHER_HALVES
    if any(first_search(method) != method for method in spec.methods):
        return OTHER_SEARCHES
    return SEEDS_ONLY if any(map(spec.trials, spec.methods)) and spec.runs >= SMALLEST_SAMPLE else CAVEAT


def in_words(comparison: Comparison) -> str:
    """One sentence; of two methods the better one comes first.

    Example:
        arcface is not significantly better than contrastive: +0.4 points MAP@R, 95% interval -0.1 to +0.9
    """
    if comparison.kind != OVER_BASELINE and comparison.difference < 0:
        comparison = comparison.turned()
    method, other, amount = comparison.method, comparison.other, _amount(comparison)
    if comparison.kind == SECOND_SEARCH:
        return f"two searches of {first_search(method)} ({method} and {other}) differ by {amount.removeprefix('+')}"
    if comparison.low is None or comparison.high is None or comparison.p_holm is None:
        few = comparison.n < SMALLEST_SAMPLE
        reason = TOO_FEW_RUNS if few else f"no interval, the same in all {comparison.n} {comparison.over}"
        return f"{method} over {other}: {amount}, {reason}"
    order = f"significantly {'worse' if comparison.difference < 0 else 'better'} than {other}"
    sentence = f"{method} is {'' if comparison.shown else 'not '}{order}: {amount}"
    if comparison.shown or comparison.low > 0 or comparison.high < 0:
        # Cut off instead of rounded, so that 0.0499 reads as significant.
        p = "< 0.001" if comparison.p_holm < 0.001 else f"= {math.floor(1000 * comparison.p_holm) / 1000:.3f}"
        sentence += f", Holm's p {p} over {comparison.family} comparisons"
    return sentence


def verdict_lines(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """The significant differences in separated MAP@R; the page has all metrics and all pairs."""
    methods, planned = list(spec.methods), spec.compare
    comparisons = compare_all(rows, methods, baselines=spec.baselines, halves=spec.halves, planned=planned)
    pairs = [comparison for comparison in comparisons if comparison.kind == PAIR]
    shown = [comparison for comparison in pairs if comparison.shown]
    lines = [*map(in_words, shown), *(in_words(each) for each in comparisons if each.kind == SECOND_SEARCH)]
    if spec.runs >= SMALLEST_SAMPLE and len(pairs) > len(shown):
        lines.append(f"{len(pairs) - len(shown)} of {len(pairs)} pairs of methods do not differ significantly.")
    return [*lines, caveat(spec)] if lines else []


def _amount(comparison: Comparison) -> str:
    """Difference and interval, with enough decimals (at most 3) to show on which side of zero the ends are."""
    ends = [100 * end for end in (comparison.low, comparison.high) if end is not None]
    decimals = next((d for d in (1, 2) if all(round(end, d) != 0 for end in ends)), 3)
    # `+ 0.0` shows no negative zero.
    difference, *shown = (f"{round(v, decimals) + 0.0:+.{decimals}f}" for v in (100 * comparison.difference, *ends))
    over = "" if comparison.over == RUNS else f" over {comparison.over}"
    interval = f", 95% interval{over} {' to '.join(shown)}" if ends else ""
    return f"{difference} points {SHOWN_METRICS.get(comparison.metric, comparison.metric)}{interval}"
