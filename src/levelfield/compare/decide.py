"""The decision of `levelfield compare`: validation chooses a row, the test classes measure it.

The features are kept unless a row is clearly above them on the validation classes, by a paired interval over classes.
Of those rows the best is taken. The test classes have no say: they measure what the row gains or loses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

import numpy as np
import torch

from levelfield.analysis import class_interval as over_classes
from levelfield.analysis.class_interval import ClassScores, class_interval, from_sums
from levelfield.analysis.shown_names import PARTS, shown_names
from levelfield.analysis.stored_embeddings import stored_embeddings
from levelfield.data.verify import counted
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.metrics.nearest import nearest
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of
from levelfield.study.spec import ALPHA, BASELINE, OF, StudySpec, is_baseline
from levelfield.study.test_scores import EmbeddedTest, class_sums, retrieval_sets
from levelfield.study.untrained import FEATURES

UNTOUCHED = f"{BASELINE}[{FEATURES}]"


@dataclass(frozen=True)
class Rung:
    """A row of the ladder, with its scores on the validation classes as fractions."""

    row: str
    validation: float  # MAP@R, the mean over folds
    classes: ClassScores  # MAP@R of the classes of all folds
    same_as: str | None = None  # the row whose model it is: an average for which validation chose the trained weights


@dataclass(frozen=True)
class Decision:
    """The row to use."""

    best: Rung
    features: Rung  # untouched
    untrained: Rung  # the one with the highest validation score
    clear: int  # number of rows that are clearly above the features
    place: str  # of the row among these


def rungs(study: StudyFolder) -> list[Rung]:
    """The rows with all folds finished, from the cheapest to the most expensive."""
    found = []
    for row in study.spec.rows:
        results = [study.state.results.get(job, {}) for job in folds_of(study.spec, row, 0)]
        if all(result.get("validation") for result in results):
            validation = fmean(result["validation"][SELECTED_BY] for result in results)
            classes = from_sums([each for result in results for each in result["classes"]])
            is_trained = all(result.get(ALPHA) == 1 for result in results)
            found.append(Rung(row, validation, classes, study.spec.derived[row][OF] if is_trained else None))
    return found


def decide(found: Sequence[Rung], cheapest: bool = False) -> Decision:
    """The features, or the row with the highest validation MAP@R of those that are clearly above them.

    Args:
        found: From the cheapest to the most expensive.
        cheapest: Of the rows clearly above the features, the first that is within one standard error of the best.
    """
    score = attrgetter("validation")  # the first of equals is taken
    features = max((rung for rung in found if rung.row.startswith(UNTOUCHED[:-1])), key=score)  # of any trunk
    clear = [rung for rung in found if class_interval(rung.classes - features.classes).is_better]
    best = max(clear or [features], key=score)
    untrained, place = max((rung for rung in found if is_baseline(rung.row)), key=score), "the best"
    if cheapest:
        near = [rung for rung in clear if (less := best.classes - rung.classes).mean <= less.variance() ** 0.5]
        best, place = [*near, features][0], "the cheapest about as good as the best"
    return Decision(best, features, untrained, len(clear), place)


def measured(study: StudyFolder, decision: Decision) -> list[str]:
    """What the test classes say: the row to use against the features, and against the best untrained row."""
    best, *others = dict.fromkeys((decision.best.row, decision.features.row, decision.untrained.row))
    scores, names, lines = {row: _tested(study, row) for row in (best, *others)}, _names(study.spec), []
    for other in others:
        if (own := scores[best]) is not None and (theirs := scores[other]) is not None:
            lines.append(f"{over_classes.in_words(class_interval(own - theirs), names[best], names[other])}.")
    return lines


def _tested(study: StudyFolder, row: str) -> ClassScores | None:
    """MAP@R of the test classes, the mean over the folds, from the stored embeddings; None without them."""
    test, jobs = study.tests().get((row, 0)), folds_of(study.spec, row, 0)
    if test is None or study.distance_of(row) != "cosine":
        return None
    stored = [stored_embeddings(study, job, test["evaluation"]) for job in jobs]
    folds = [of_embeddings(each) for each in stored if not isinstance(each, str)]
    if len(folds) < len(jobs):
        return None
    changes = [fold.changes_KK for fold in folds if fold.changes_KK is not None]
    mean_changes = sum(changes) / len(folds) if changes else None
    return ClassScores(np.mean([fold.sums_K for fold in folds], axis=0), folds[0].queries_K, mean_changes)


def of_embeddings(test: EmbeddedTest) -> ClassScores:
    """MAP@R of the classes of a fold's test embeddings. With groups or a column of queries, the gallery is as given."""
    rows, labels = torch.nn.functional.normalize(test.samples.embeddings.float()), test.samples.labels
    if test.groups is not None or test.is_query is not None:
        sets = retrieval_sets(rows, labels, test.is_query, groups=test.groups)
        of_queries = retrieval_metrics(**sets, metrics=(SELECTED_BY,), per_query=True)[SELECTED_BY]
        return from_sums(class_sums(torch.as_tensor(of_queries), sets["labels"]))
    needed = over_classes.neighbours_needed(labels.numpy())
    _, items = nearest(rows, rows, needed, torch.arange(len(rows)))
    return over_classes.class_scores(items.numpy(), labels.numpy())


def decision_lines(decision: Decision, found: Sequence[Rung], spec: StudySpec, test: Sequence[str] = ()) -> list[str]:
    """The decision in plain words, with the sentences of `measured`."""
    best, features, names = decision.best, decision.features, _names(spec)
    classes, blocks = np.count_nonzero(features.classes.queries_K), spec.blocks or spec.folds
    where = f"on {classes} validation classes ({spec.folds} of {blocks} folds)"
    if best is not features:
        rows = counted(decision.clear, "row")
        lines = [f"Use {names[best.row]}: {decision.place} of {rows} clearly above the features {where}."]
    else:
        lines = [f"Use the features as they are: no row is clearly above them {where}."]
        highest = max(found, key=attrgetter("validation"))
        above = class_interval(highest.classes - features.classes)
        if not np.isnan(above.needed):
            least = f"it would have to be at least {100 * above.needed:.1f}."
            lines.append(f"{names[highest.row]} has {100 * above.difference:+.1f} points there; {least}")
    lines += [*test, *(f"{names[rung.row]} has the model of {names[rung.same_as]}." for rung in found if rung.same_as)]
    if not any(rung.row.startswith("trunk_") for rung in found):
        lines.append("The trunk was not trained: give it more --minutes.")
    return [f"{line[0].upper()}{line[1:]}" for line in lines]


def _names(spec: StudySpec) -> dict[str, str]:
    """The rows in words, such as `the features` or `the whole trunk, NT-Xent (trunk_ntxent)`."""
    names = shown_names(spec)
    for row, name in names.items():
        if is_baseline(row):
            names[row] = "the features" if name == FEATURES else f'"{name}"'
        elif name != row:
            names[row] = f"{'the ' * name.startswith(tuple(PARTS.values()))}{name} ({row})"
    return names
