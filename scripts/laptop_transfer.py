"""Which settings go from one laptop set to another, and the one of each method that does best over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from laptop_sets import OF, TRANSFER, LaptopSet, scores_by_method
from laptop_words import Section, mean_with, table

DEFAULT = "default"

# Method to source of a setting to validation MAP@R on one set.
Scores = dict[str, dict[str, float]]


class Choice(NamedTuple):
    """A method's setting for data that nobody searched on.

    Args:
        source: The set whose chosen setting it is.
        regret: Mean over sets of what it loses to the set's own setting, a fraction.
        left_out: Set to what the setting loses there that the other sets alone choose; empty for fewer than 3 sets.
    """

    source: str
    regret: float
    left_out: dict[str, float]


def measured(each: LaptopSet) -> Scores | None:
    """Validation MAP@R of one run a fold at each set's chosen setting, and at the default; None without that study."""
    rows = each.follow_up(TRANSFER)
    if rows is None:
        return None
    found: Scores = {}
    for name, scores in scores_by_method(rows, "run").items():
        method, _, source = name.partition(OF)
        if source:
            found.setdefault(method, {})[source] = float(scores.mean())
    return found


def predicted(each: LaptopSet, sets: Sequence[LaptopSet]) -> Scores:
    """The same from the set's recorded trials, by a Gaussian process over the settings; no default."""
    found = {}
    for method in each.methods:
        values = each.surfaces[method]([other.chosen(method) for other in sets])
        found[method] = {other.name: float(value) for other, value in zip(sets, values, strict=True)}
    return found


def transfers(sets: Sequence[LaptopSet]) -> tuple[dict[str, Scores], bool]:
    """Set to scores of all sets' settings on it; measured where every set has the study, else predicted."""
    names = {each.name for each in sets}
    known = {each.name: scores for each in sets if (scores := measured(each)) is not None}
    if len(known) == len(sets) and all(names <= set(by) for one in known.values() for by in one.values()):
        return known, True
    return {each.name: predicted(each, sets) for each in sets}, False


def regret(scores: dict[str, Scores], on: str, method: str, source: str) -> float:
    """What a method loses on a set with another one's setting instead of its own."""
    return scores[on][method][on] - scores[on][method][source]


def best_source(scores: dict[str, Scores], method: str, sources: Sequence[str], over: Sequence[str]) -> str:
    """The setting with the least mean regret over some sets; the first of equals."""
    return min(sources, key=lambda source: fmean(regret(scores, on, method, source) for on in over))


def choose(scores: dict[str, Scores], method: str) -> Choice:
    """The setting with the least mean regret over the sets, and what such a choice loses on a set it has not seen."""
    names = list(scores)
    candidates = [*names, *([DEFAULT] if all(DEFAULT in scores[name][method] for name in names) else [])]
    source = best_source(scores, method, candidates, names)
    left_out = {}
    for name in names if len(names) > 2 else []:
        others = [other for other in names if other != name]
        without = best_source(scores, method, [each for each in candidates if each != name], others)
        left_out[name] = regret(scores, name, method, without)
    return Choice(source, fmean(regret(scores, on, method, source) for on in names), left_out)


def lost(fraction: float, decimals: int = 1) -> str:
    """Points, negative where something is won; zero has no sign."""
    return f"{round(100 * fraction, decimals) + 0.0:.{decimals}f}"


def said_alone(choices: dict[str, Choice], names: Sequence[str]) -> str:
    """What the choice made without a set costs there, with an interval over the sets."""
    left_out = [found.left_out for found in choices.values()]
    if not all(left_out):
        return ""
    by_set = [fmean(costs[name] for costs in left_out) for name in names]
    return (
        f" The best one over sets, chosen without the set it is used on, costs {mean_with(by_set, signed=False)} "
        "(95% interval over the sets)."
    )


def transfer_section(sets: Sequence[LaptopSet]) -> Section:
    """The matrix of regret, and the settings that are the defaults of studies without a search."""
    question = "Which settings transfer from one set to another?"
    if len(sets) < 2:
        return Section(question, "That takes two sets.", [])
    scores, is_measured = transfers(sets)
    names, methods = [each.name for each in sets], sets[0].methods
    sources = [*names, *([DEFAULT] if is_measured else [])]
    matrix = {(a, b): [regret(scores, b, m, a) for m in methods] for a in sources for b in names}
    rows = [
        [
            f"from {a}",
            *("" if a == b else f"{lost(fmean(matrix[a, b]))} (worst {lost(max(matrix[a, b]))})" for b in names),
        ]
        for a in sources
    ]
    elsewhere = {(a, b): fmean(matrix[a, b]) for a in names for b in names if a != b}
    worst_loss = max(max(matrix[pair]) for pair in elsewhere)
    choices = {method: choose(scores, method) for method in methods}
    tuned = []
    for method, found in choices.items():
        cells = [f"`{method}`", found.source, lost(found.regret, 2)]
        if found.left_out:
            worst = max(found.left_out, key=found.left_out.__getitem__)
            cells += [lost(fmean(found.left_out.values()), 2), f"{lost(found.left_out[worst])} ({worst})"]
        else:
            cells += ["", ""]
        tuned.append(cells)
    how = (
        "one run on each of the four validation folds at each set's setting, the own one among them"
        if is_measured
        else "**predicted** by a Gaussian process from the recorded trials of the set it goes to, for the trainings at "
        "other sets' settings (`python scripts/laptop_followups.py`) are not all here: settings far from every trial "
        "are "
        "guessed at"
    )
    short = (
        f"A setting of another set costs {lost(fmean(elsewhere.values()))} points of validation MAP@R on average over "
        f"methods and pairs of sets (median pair {lost(median(elsewhere.values()))}, worst pair "
        f"{lost(max(elsewhere.values()))}, worst method of a pair {lost(worst_loss)}; "
        + ("measured" if is_measured else "predicted from recorded trials")
        + ")."
        + said_alone(choices, names)
    )
    lines = [
        "What the settings searched on one set (rows) lose on another (columns) to its own, points of validation "
        "MAP@R, mean "
        f"of the 14 methods and the worst of them; {how}. Negative: better than its own.",
        "",
        *table(["", *names], rows),
        "",
        "The setting with the least mean cost over the sets, from which `configs/study/laptop/unsearched.yaml` is "
        "written (`python scripts/laptop_followups.py --tuned`), and, for honesty, what is lost on a set when it and "
        "its settings have no say in the choice:",
        "",
        *table(["", "setting of", "mean cost, its own set's 0 included", "without the set: mean cost", "worst"], tuned),
    ]
    if is_measured:
        wins = [matrix[DEFAULT, b][i] for b in names for i in range(len(methods))]
        lines += ["", f"The files under `configs/method` lose {lost(fmean(wins))} points on average."]
    return Section(question, short, lines)
