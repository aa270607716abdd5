"""The verdict of a study in two sentences: which method is best, and whether training pays."""

from collections.abc import Mapping, Sequence

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, compare_all
from levelfield.analysis.results import ResultRow, SummaryRow, summarise
from levelfield.analysis.verdicts import amount, p_in_words
from levelfield.metrics.table import SELECTED_BY
from levelfield.study.spec import FEATURES, LDA, WHITENING, StudySpec, first_search, is_baseline

MOST_NAMED = 4  # of the methods that cannot be told from the best one


def best_method(rows: Sequence[ResultRow], spec: StudySpec) -> str:
    """The trained method with the highest mean MAP@R of separated embeddings on the test classes."""
    trained = _trained(spec)
    tested = [row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)]
    return max((row for row in tested if row.method in trained), key=lambda row: row.mean).method


def kind_of(row: str, spec: StudySpec) -> str:
    """What a row embeds with: `features`, `pca`, `lda`, `whitening`, or `method` for a trained one."""
    if not is_baseline(row):
        return "method"
    kind = spec.reference_of(row)
    if kind.startswith(WHITENING):
        return WHITENING
    return kind if kind in (FEATURES, LDA) else "pca"


def two_sentences(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """The verdict: which method is best and which cannot be told from it, then whether training pays.

    The opponent is the trunk without training: the best row of its features as they are or reduced by a PCA. Another
    row without training that is better than all methods is named.
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
    pairs = [each for each in compare_all(rows, trained) if each.kind == PAIR and best in (each.method, each.other)]
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
    opponent = _highest(means, [method for method in means if kind_of(method, spec) in ("features", "pca")])
    if opponent is None:
        return [f"{first}."]
    found = [each for each in compare_all(rows, trained, baselines=opponent) if each.kind == OVER_BASELINE]
    over = next((each for each in found if each.method == best), None)
    if over is None:  # a fold of the opponent is missing
        return [f"{first}."]
    pays = "Training pays" if over.difference > 0 else "Training does not pay"
    gain, comma, interval = amount(over).partition(",")
    second = f"{pays if over.shown else 'Training is not shown to pay'}: {gain} over {opponent}{comma}{interval}"
    second += f" ({p_in_words(over.p_holm)})" if over.p_holm is not None else ""
    reference = _highest(means, [method for method in means if is_baseline(method)])
    if reference is not None and means[reference].mean > max(means[opponent].mean, means[best].mean):
        second += f"; yet {reference}, which is not trained either, has {100 * means[reference].mean:.1f} percent"
    return [f"{first}.", f"{second}."]


def _highest(means: Mapping[str, SummaryRow], methods: Sequence[str]) -> str | None:
    return max(methods, key=lambda method: means[method].mean, default=None)


def _all_others(number: int) -> str:
    return "the other" if number == 1 else f"all {number} others"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _trained(spec: StudySpec) -> list[str]:
    """The methods but baselines and second searches, which are there to be compared with the first alone."""
    return [method for method in spec.methods if not is_baseline(method) and method == first_search(method)]
