"""What a study says to somebody who wants one embedding of their own data: whether to train, and with which method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, Comparison, compare_all
from levelfield.analysis.results import ResultRow, SummaryRow, summarise
from levelfield.analysis.statistics import SMALLEST_SAMPLE
from levelfield.analysis.verdicts import amount, in_words, p_in_words, points
from levelfield.metrics.table import SELECTED_BY, SHOWN_METRICS
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of
from levelfield.study.spec import FEATURES, LDA, WHITENING, StudySpec, first_search, is_baseline, value_of

MOST_NAMED = 4  # of the methods that cannot be told from the best one
PRECISION = "precision_at_1"
DECIDED_BY = (SELECTED_BY, PRECISION)
MOST_A_PCA_COSTS = 0.01  # of each of these, a fraction


def best_method(rows: Sequence[ResultRow], spec: StudySpec) -> str:
    """The trained method with the highest mean MAP@R of separated embeddings on the test classes."""
    trained = _trained(spec)
    tested = [row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)]
    return max((row for row in tested if row.method in trained), key=lambda row: row.mean).method


@dataclass(frozen=True)
class Decision:
    """Which row of a study's table to embed with.

    Args:
        row: The row to use.
        features: The row of untouched features that the gains are over; of several trunks, the one with the highest
            MAP@R.
        gains: Row to metric to its mean test score minus that of `features`, a fraction; of all rows in order.
    """

    row: str
    features: str
    gains: dict[str, dict[str, float]]

    @property
    def best(self) -> str:
        """The trained method with the highest MAP@R."""
        return self._highest(SELECTED_BY)

    @property
    def disputed(self) -> str | None:
        """The trained method with the highest MAP@R or P@1, if it is above the features in one and below in another."""
        for row in (self.best, self._highest(PRECISION)):
            if min(self.gains[row].values()) < 0 < max(self.gains[row].values()):
                return row
        return None

    def _highest(self, metric: str) -> str:
        return max((row for row in self.gains if not is_baseline(row)), key=lambda row: self.gains[row][metric])


def kind_of(row: str, spec: StudySpec) -> str:
    """What a row embeds with: `features`, `pca`, `lda`, `whitening`, or `method` for a trained one."""
    if not is_baseline(row):
        return "method"
    kind = spec.reference_of(row)
    return kind if kind in (FEATURES, LDA, WHITENING) else "pca"


def decide(rows: Sequence[ResultRow], spec: StudySpec) -> Decision:
    """The row to use, by mean MAP@R and P@1 of separated embeddings on the test classes.

    1. Of the rows above the features in MAP@R and not below them in P@1, the one with the highest MAP@R.
    2. If there is none, the PCA with the highest MAP@R that costs less than one point of MAP@R and of P@1: shorter
       vectors make a smaller gallery and a faster search.
    3. Otherwise the features as they are.

    With several trunks a row is compared with the features of each. Significance decides nothing; it is printed.
    """
    means: dict[str, dict[str, float]] = {}
    for row in summarise(rows):
        if row.embedding == "separated" and row.metric in DECIDED_BY:
            means.setdefault(row.method, {})[row.metric] = row.mean
    untouched = [row for row in spec.rows if kind_of(row, spec) == "features"]
    features = max(untouched, key=lambda row: means[row][SELECTED_BY])
    gains = {
        row: {metric: means[row][metric] - means[features][metric] for metric in DECIDED_BY}
        for row in (*filter(is_baseline, spec.rows), *_trained(spec))
        if row in means
    }
    best = {metric: max(gains[row][metric] for row in untouched) for metric in DECIDED_BY}
    above = [
        row
        for row, gain in gains.items()
        if gain[SELECTED_BY] > best[SELECTED_BY] and gain[PRECISION] >= best[PRECISION]
    ]
    cheap = [
        row
        for row, gain in gains.items()
        if kind_of(row, spec) == "pca" and all(gain[metric] > best[metric] - MOST_A_PCA_COSTS for metric in DECIDED_BY)
    ]
    chosen = max(above or cheap or [features], key=lambda row: gains[row][SELECTED_BY])
    return Decision(chosen, features, gains)


def decision_lines(
    decision: Decision, rows: Sequence[ResultRow], spec: StudySpec, sizes: Mapping[str, tuple[int, int]]
) -> list[str]:
    """The decision in one line, then how surely the method that it names differs from the features.

    Args:
        sizes: PCA row to the length of its trunk's features and of its embedding.
    """
    row, kind, trained = decision.row, kind_of(decision.row, spec), _trained(spec)
    of_several = sum(kind_of(each, spec) == "features" for each in spec.rows) > 1
    features = (
        f"the features of {(value_of(decision.features) or '').removeprefix('features-')}"
        if of_several
        else "the features"
    )
    named = row if kind == "method" else decision.best
    found = [
        comparison
        for metric in DECIDED_BY
        for comparison in compare_all(rows, trained, metric, baselines=decision.features)
        if (comparison.kind, comparison.method) == (OVER_BASELINE, named)
    ]
    gain = f"{_gains(decision, row)} over {features}"
    if kind == "method":
        first = f"Use {row}: {gain}; {_significance(found)}."
    elif kind == "lda":
        first = f"Use a linear discriminant analysis of the training classes ({row}): {gain}."
    elif kind == "whitening":
        first = f"Use a whitening by the covariance within the training classes ({row}): {gain}."
    elif kind == "pca":
        loses = min(decision.gains[row].values()) < 0
        before, after = sizes[row]
        first = f"Use a PCA of the features to {after:,} numbers, from {before:,} ({row}): "
        first += f"it costs {_cost(decision, row)}." if loses else f"{gain}."
    else:
        first = f"Use {features} as they are."
    best, disputed = decision.best, decision.disputed
    if best != row:
        agree = " (MAP@R and P@1 disagree)" if best == disputed else ""
        first += f" The best of {len(trained)} methods by MAP@R, {best}: {_gains(decision, best)}{agree}."
    if disputed not in (None, best):
        first += f" MAP@R and P@1 disagree on {disputed}: {_gains(decision, disputed)}."
    lines = [first]
    if kind in ("lda", "whitening", "method"):
        lines.append("  it was chosen by this score, so the score is a little optimistic")
    if kind == "features" and sizes:
        pca = max(sizes, key=lambda each: decision.gains[each][SELECTED_BY])
        before, after = sizes[pca]
        lines.append(f"  a PCA to {after:,} numbers, from {before:,} ({pca}), costs {_cost(decision, pca)}")
    lines += [f"  {in_words(comparison)}" for comparison in found]
    pairs = [each for each in compare_all(rows, trained) if each.kind == PAIR and row in (each.method, each.other)]
    level = [each.other if each.method == row else each.method for each in pairs if not each.shown]
    if level:
        lines.append(f"  not significantly different from {row} in MAP@R: {', '.join(level)}")
    return lines


def _gains(decision: Decision, row: str) -> str:
    gains = decision.gains[row].items()
    return ", ".join(f"{points(gain)} points {SHOWN_METRICS[metric]}" for metric, gain in gains)


def _cost(decision: Decision, row: str) -> str:
    costs = [(-gain, SHOWN_METRICS[metric]) for metric, gain in decision.gains[row].items()]
    return " and ".join(f"{points(cost)[1:]} points {title}" if cost > 0 else f"no {title}" for cost, title in costs)


def _significance(found: Sequence[Comparison]) -> str:
    if not found or found[0].n < SMALLEST_SAMPLE:
        return "too few runs to say whether the differences are chance"
    shown = [SHOWN_METRICS[comparison.metric] for comparison in found if comparison.shown]
    if len(shown) == len(found):
        return "both differences are significant"
    return f"only the difference in {shown[0]} is significant" if shown else "neither difference is significant"


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


def usual_epochs(study: StudyFolder, method: str) -> int:
    """Epochs to train the method for where nothing is validated: the mean of its runs' best ones, at least 1."""
    results, spec = study.state.results, study.spec
    jobs = [job for run in range(spec.runs) for job in folds_of(spec, method, run)]
    epochs = [results[job]["best_epoch"] + 1 for job in jobs if "best_epoch" in results.get(job, {})]
    return max(1, round(mean(epochs))) if epochs else 1


def _trained(spec: StudySpec) -> list[str]:
    """The methods but baselines and second searches, which are there to be compared with the first alone."""
    return [method for method in spec.methods if not is_baseline(method) and method == first_search(method)]
