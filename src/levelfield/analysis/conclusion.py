"""A study in a few sentences: whether training pays, the best method, one search each, evaluations of test classes."""

from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.analysis.cap import cap_lines
from levelfield.analysis.comparison import OVER_BASELINE, PAIR, Comparison, compare_all
from levelfield.analysis.results import ResultRow, SummaryRow, summarise
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdicts import SEEDS_ONLY, caveat
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import StudySpec, first_search, is_baseline

MOST_NAMED = 4  # methods listed by name; more are counted


def conclusion(study: StudyFolder, rows: Sequence[ResultRow]) -> list[str]:
    """The sentences below the table and at the top of the page."""
    cap = [f", and {sentence}" for sentence in cap_lines(study)] or ["."]
    return [*verdict(rows, study.spec), evaluated(study.evaluations()) + cap[0]]


def verdict(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """Whether the best method beats the best untrained row, then its rivals; by separated test MAP@R."""
    means, names = mean_scores(rows), shown_names(spec)
    if not set(_first_searches(spec)) & set(means):
        return ["No method has test scores yet."]
    best = best_method(rows, spec)
    found = compare_all(rows, _first_searches(spec), baselines=baselines_of(means, spec), halves=spec.halves)
    pairs = [each for each in found if each.kind == PAIR and best in (each.method, each.other)]
    rivals = [each.other if each.method == best else each.method for each in pairs if not each.shown]
    rivals = [names[each] for each in sorted(rivals, key=lambda method: -means[method].mean)]
    name, ci95 = names[best], means[best].ci95
    score = f"{100 * means[best].mean:.1f}{'' if ci95 is None else f' ± {100 * ci95:.1f}'} percent"
    if not pairs:
        first = f"{name} has {score} MAP@R on unseen classes."
    elif not rivals:
        others = "the other method" if len(pairs) == 1 else f"all {len(pairs)} other methods"
        first = f"{name} has the best MAP@R on unseen classes, {score}, significantly above {others}."
    elif all(each.p is None for each in pairs) and means[best].n >= 3:  # a t-interval's fewest runs
        same = "the same score" if all(each.difference == 0 for each in pairs) else "the same difference"
        first = f"{name} has the highest MAP@R on unseen classes, {score}, with {same} in every run."
    elif all(each.p is None for each in pairs):
        first = f"{name} has the highest MAP@R on unseen classes, {score}, with too few runs to rule out chance."
    else:
        named = _listed(rivals) if len(rivals) <= MOST_NAMED else f"{len(rivals)} of {len(pairs)} other methods"
        first = f"{name} has the highest MAP@R on unseen classes, {score}, but {named} may be as good."
    return [*_training(best, found, names), first, *[SEEDS_ONLY] * (caveat(spec) == SEEDS_ONLY)]


def mean_scores(rows: Sequence[ResultRow]) -> dict[str, SummaryRow]:
    """Row of the table to its test MAP@R, separated embeddings."""
    return {row.method: row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)}


def best_method(rows: Sequence[ResultRow], spec: StudySpec) -> str:
    """The trained method with the highest test MAP@R."""
    means = mean_scores(rows)
    return max(sorted(set(_first_searches(spec)) & set(means)), key=lambda method: means[method].mean)


def best_untrained(means: Mapping[str, SummaryRow], spec: StudySpec, method: str) -> str | None:
    """The untrained row with the highest test MAP@R on the same test classes as `method`."""
    same = [row for row in means if is_baseline(row) and spec.halves.get(row) == spec.halves.get(method)]
    return max(same, key=lambda row: means[row].mean, default=None)


def baselines_of(means: Mapping[str, SummaryRow], spec: StudySpec) -> dict[str, str]:
    """Trained row to the best untrained row on the same test classes."""
    return {row: best_untrained(means, spec, row) or usual for row, usual in spec.baselines.items()}


def evaluated(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """How often the test classes were evaluated, by the ledger; without a full stop.

    Example:
        >>> evaluated([{"by": "study smoke"}, {"by": "levelfield test", "reason": "a better crop"}])
        'The test classes were evaluated 2 times'
    """
    if not evaluations:
        return "The test classes have not been evaluated"
    return f"The test classes were evaluated {'once' if len(evaluations) == 1 else f'{len(evaluations)} times'}"


def _training(best: str, found: Sequence[Comparison], names: Mapping[str, str]) -> list[str]:
    """Whether the best method beats the best untrained row, and how many methods are above or below it."""
    over = [each for each in found if each.kind == OVER_BASELINE]
    own = next((each for each in over if each.method == best), None)
    if own is None:
        return []
    points, where = 100 * abs(own.difference), "above" if own.difference > 0 else "below"
    gap = f"{points:.{1 if points >= 0.05 else 2}f} points {where} the best untrained row ({names[own.other]})"
    sentences = [f"{_pays(own)}: {names[best]} is {gap}."]
    same = [each for each in over if each.other == own.other]
    if len(same) > 1 and own.p is None:
        sentences.append(f"{sum(each.difference > 0 for each in same)} of {len(same)} methods end above it.")
    elif len(same) > 1:
        for where, sign in (("above", 1), ("below", -1)):
            count = sum(each.shown and sign * each.difference > 0 for each in same)
            sentences += [f"{count} of {len(same)} methods are significantly {where} it."] * (count > 0)
    return [" ".join(sentences)]


def _pays(over: Comparison) -> str:
    gains = over.difference > 0
    if over.p is None:
        return "Training may pay" if gains else "Training may not pay"
    if not over.shown:
        return "Training brings no significant gain"
    return "Training pays" if gains else "Training does not pay"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _first_searches(spec: StudySpec) -> list[str]:
    """The trained methods; `arcface@2` is compared with `arcface` only."""
    return [method for method in spec.methods if not is_baseline(method) and method == first_search(method)]
