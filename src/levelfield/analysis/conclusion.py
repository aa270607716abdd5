"""The verdict of a study in a few sentences: which method is best, and whether training pays."""

from collections.abc import Mapping, Sequence

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, compare_all
from levelfield.analysis.results import ResultRow, SummaryRow, summarise
from levelfield.analysis.verdicts import amount, p_in_words
from levelfield.metrics.table import SELECTED_BY
from levelfield.study.spec import StudySpec, first_search, is_baseline

MOST_NAMED = 4  # of methods that do not differ significantly from the best one, and of untrained rows


def best_method(rows: Sequence[ResultRow], spec: StudySpec) -> str:
    """The trained method with the highest mean MAP@R of separated embeddings on the test classes."""
    trained = _trained(spec)
    tested = [row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)]
    return max((row for row in tested if row.method in trained), key=lambda row: row.mean).method


def verdict(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """Sentences: the best method and those that do not differ significantly, and whether training pays.

    Training is compared with the best of all untrained rows, including those that learn from the classes.
    """
    trained = _trained(spec)
    means = {row.method: row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)}
    tested = [method for method in trained if method in means]
    if not tested:
        return ["Nothing can be said of unseen classes yet: no method has test scores."]
    best = best_method(rows, spec)
    interval = "" if means[best].ci95 is None else f" ± {100 * (means[best].ci95 or 0):.1f}"
    first = f"On unseen classes {best} has {'the highest ' if len(tested) > 1 else ''}MAP@R, "
    first += f"{100 * means[best].mean:.1f}{interval} percent"
    found = compare_all(rows, trained, halves=spec.halves)
    pairs = [each for each in found if each.kind == PAIR and best in (each.method, each.other)]
    level = [each.other if each.method == best else each.method for each in pairs if not each.shown]
    if pairs and all(each.p is None for each in pairs):
        first += ", with too few runs to say that this is no chance"
    elif pairs and not level:
        first += f", and is shown to be better than {_all_others(len(pairs))}"
    elif pairs:
        named = _listed(level) if len(level) <= MOST_NAMED else f"{len(level)} of {len(pairs)} others"
        if better := len(pairs) - len(level):
            first += f"; it is shown to be better than {better} of {len(pairs)} others, and"
        first += f"{'' if better else ';'} no difference from {named} is shown"
    same = [row for row in means if is_baseline(row) and spec.halves.get(row) == spec.halves.get(best)]
    untrained = sorted(same, key=lambda row: -means[row].mean)
    return [f"{first}.", *_against(untrained, best, rows, spec), *_counts(untrained, tested, means)]


def _against(untrained: Sequence[str], best: str, rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """Whether training pays, compared with the best untrained row; empty if that misses a fold."""
    if not untrained:
        return []
    found = compare_all(rows, _trained(spec), baselines=untrained[0])
    over = next((each for each in found if each.kind == OVER_BASELINE and each.method == best), None)
    if over is None:
        return []
    pays = "Training pays" if over.difference > 0 else "Training does not pay"
    gain, comma, interval = amount(over).partition(",")
    said = f"{pays if over.shown else 'Training is not shown to pay'}: {gain} over {untrained[0]}{comma}{interval}"
    return [f"{said} ({p_in_words(over.p_holm)})." if over.p_holm is not None else f"{said}."]


def _counts(untrained: Sequence[str], tested: Sequence[str], means: Mapping[str, SummaryRow]) -> list[str]:
    """How many methods beat each of the best untrained rows."""
    if not untrained or len(tested) == 1:
        return []
    above = {row: sum(means[method].mean > means[row].mean for method in tested) for row in untrained[:MOST_NAMED]}
    first, *others = (f"{number} above {row} ({100 * means[row].mean:.1f})" for row, number in above.items())
    number, _, where = first.partition(" ")
    said = f"{number} of {len(tested)} methods end{'s' * (number == '1')} {where}"
    return [f"{_listed([said, *others])}."]


def _all_others(number: int) -> str:
    return "the other" if number == 1 else f"all {number} others"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _trained(spec: StudySpec) -> list[str]:
    """The methods without baselines and second searches."""
    return [method for method in spec.methods if not is_baseline(method) and method == first_search(method)]
