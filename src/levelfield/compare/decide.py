"""The decision of `levelfield compare`: validation chooses a row, the test classes measure it.

The features are kept unless a row is clearly above them on the validation classes, by a paired interval over classes.
Of those rows the best is taken. The test classes have no say: they measure what the row gains or loses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from levelfield.analysis.class_interval import (
    ClassInterval,
    ClassScores,
    class_interval,
    class_scores,
    from_sums,
    in_words,
    neighbours_needed,
)
from levelfield.analysis.results import collect_rows
from levelfield.analysis.stored_embeddings import stored_embeddings
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY, SHOWN_METRICS
from levelfield.metrics.nearest import nearest
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of
from levelfield.study.spec import ALPHA, BASELINE, OF, StudySpec, is_baseline, value_of
from levelfield.study.test_scores import EmbeddedTest, class_sums, retrieval_sets
from levelfield.study.untrained import FEATURES, PCA, WHITENING

PRECISION = "precision_at_1"
UNTOUCHED = f"{BASELINE}[{FEATURES}]"
WIDTHS = (12, 10, 10, 10)
# Beginnings of a row's name in words.
PARTS = {"trunk_": "the whole trunk trained with ", "head_": "a linear layer trained with "}


@dataclass(frozen=True)
class Rung:
    """A row of the ladder.

    Attributes:
        validation: MAP@R of the validation classes, a fraction, the mean over folds.
        test: Metric to the test score, a fraction, the mean over folds; empty before the test.
        of_first_fold: The same for fold 0's checkpoint.
        seconds: Total time of its jobs.
        classes: MAP@R of the validation classes of all folds; None if a job stored none.
        same_as: The row whose model it is: an average for which validation chose the trained weights.
    """

    row: str
    validation: float
    test: dict[str, float]
    of_first_fold: dict[str, float]
    seconds: float
    classes: ClassScores | None = None
    same_as: str | None = None

    def above(self, other: "Rung") -> ClassInterval:
        """The difference of both on the validation classes, with the gallery as given."""
        if self.classes is None or other.classes is None:
            return ClassInterval(self.validation - other.validation, np.nan, np.nan, np.nan, 0)
        return class_interval(self.classes - other.classes)


@dataclass(frozen=True)
class Decision:
    """The row to use.

    Attributes:
        features: The row of the untouched features.
        untrained: The untrained row with the highest validation score.
        of_fold: The scores of the first fold of the row to use.
        clear: Number of rows that are clearly above the features.
    """

    row: str
    features: str
    untrained: str
    of_fold: str
    clear: int


def rungs(study: StudyFolder) -> list[Rung]:
    """The rows with all folds finished, from the cheapest to the most expensive."""
    rows, found = collect_rows(study), []
    for name in study.spec.rows:
        jobs = folds_of(study.spec, name, 0)
        results = [result for job in jobs if (result := study.state.results.get(job)) and result.get("validation")]
        if len(results) < len(jobs):
            continue
        tested = [
            row for row in rows if (row.method, row.stage, row.run, row.embedding) == (name, "test", 0, "separated")
        ]
        metrics = dict.fromkeys(row.metric for row in tested)
        of_classes = [each for result in results for each in result.get("classes", [])]
        averaged = study.spec.derived.get(name, {})
        is_trained = ALPHA in averaged and all(result.get(ALPHA) == 1 for result in results)
        found.append(
            Rung(
                name,
                fmean(result["validation"][SELECTED_BY] for result in results),
                {metric: fmean(row.value for row in tested if row.metric == metric) for metric in metrics},
                {row.metric: row.value for row in tested if row.fold == 0},
                sum(result["seconds"] for result in results),
                from_sums(of_classes) if of_classes else None,
                averaged[OF] if is_trained else None,
            )
        )
    return found


def decide(found: Sequence[Rung], cheapest: bool = False) -> Decision:
    """The features, or the row with the highest validation MAP@R of those that are clearly above them.

    Args:
        found: From the cheapest to the most expensive.
        cheapest: Of the rows clearly above the features, the first that is within one standard error of the best.
    """
    untouched = [rung for rung in found if rung.row.startswith(UNTOUCHED[:-1])]
    features = max(untouched, key=lambda rung: rung.validation)
    clear = [rung for rung in found if rung.above(features).is_better]
    best = max(clear, key=lambda rung: rung.validation, default=features)  # the first of equals
    if cheapest:
        best = next((rung for rung in clear if _within_one_error(rung, best)), best)
    untrained = max((r for r in found if is_baseline(r.row)), key=lambda rung: rung.validation)
    scores = ", ".join(f"{SHOWN_METRICS[m]} {100 * best.of_first_fold[m]:.1f}" for m in (SELECTED_BY, PRECISION))
    of_fold = f"{scores} percent on the test classes"
    return Decision(best.row, features.row, untrained.row, of_fold, len(clear))


def _within_one_error(rung: Rung, best: Rung) -> bool:
    assert rung.classes is not None
    assert best.classes is not None
    less = best.classes - rung.classes
    return less.mean <= less.variance() ** 0.5


def measured(study: StudyFolder, decision: Decision) -> list[str]:
    """What the test classes say: the row to use against the features, and against the best untrained row."""
    others = dict.fromkeys((decision.features, decision.untrained))
    scores = {row: _tested(study, row) for row in (decision.row, *others)}
    row, lines = scores[decision.row], []
    for other in others:
        if other != decision.row and row is not None and (theirs := scores[other]) is not None:
            lines.append(f"{in_words(class_interval(row - theirs), row_in_words(decision.row), row_in_words(other))}.")
    return [line[0].upper() + line[1:] for line in lines]


def _tested(study: StudyFolder, row: str) -> ClassScores | None:
    """MAP@R of the test classes, the mean over the folds, from the stored embeddings; None without them."""
    test = study.tests().get((row, 0))
    if test is None or study.distance_of(row) != "cosine":
        return None
    folds = list[ClassScores]()
    for job in folds_of(study.spec, row, 0):
        stored = stored_embeddings(study, job, test["evaluation"])
        if isinstance(stored, str):
            return None
        folds.append(of_embeddings(stored))
    changes = None
    if all(fold.changes_KK is not None for fold in folds):
        changes = sum(fold.changes_KK for fold in folds) / len(folds)
    return ClassScores(np.mean([fold.sums_K for fold in folds], axis=0), folds[0].queries_K, changes)


def of_embeddings(test: EmbeddedTest) -> ClassScores:
    """MAP@R of the classes of a fold's test embeddings. With groups or a column of queries, the gallery is as given."""
    rows, labels = torch.nn.functional.normalize(test.samples.embeddings.float()), test.samples.labels
    if test.groups is not None or test.is_query is not None:
        sets = retrieval_sets(rows, labels, test.is_query, groups=test.groups)
        of_queries = retrieval_metrics(**sets, metrics=(SELECTED_BY,), per_query=True)[SELECTED_BY]
        return from_sums(class_sums(torch.as_tensor(of_queries), sets["labels"]))
    _, items = nearest(rows, rows, neighbours_needed(labels.numpy()), torch.arange(len(rows)))
    return class_scores(items.numpy(), labels.numpy())


def decision_lines(decision: Decision, found: Sequence[Rung], spec: StudySpec, test: Sequence[str] = ()) -> list[str]:
    """The decision in plain words, then the table of the rows in percent.

    Args:
        test: The sentences of `measured`.
    """
    of = {rung.row: rung for rung in found}
    best, features = of[decision.row], of[decision.features]
    classes = 0 if features.classes is None else int((features.classes.queries_K > 0).sum())
    where = f"on {classes} validation classes ({spec.folds} of {spec.blocks or spec.folds} folds)"
    words = []
    for key in (SELECTED_BY, PRECISION):
        score, untrained = (round(100 * rung.test[key], 1) for rung in (best, features))
        gain = round(score - untrained, 1) + 0.0
        words.append(f"{SHOWN_METRICS[key]} {score} (untrained features {untrained}: {gain:+})")
    first = f"Use {row_in_words(decision.row)}: on unseen classes {' and '.join(words)}, in percent."
    chosen = f"Of {decision.clear} rows clearly above the features {where} it is the best."
    if best is features:
        highest = max(found, key=lambda rung: rung.validation)
        first, chosen = f"Use the features as they are: no row is clearly above them {where}.", ""
        if highest is not features and not np.isnan((above := highest.above(features)).needed):
            chosen = (
                f"{row_in_words(highest.row)} has {100 * above.difference:+.1f} points there; it would have to be at "
                f"least {100 * above.needed:.1f}."
            )
            chosen = chosen[0].upper() + chosen[1:]
    lines = [first, *filter(None, [chosen]), *test, "The test classes were scored after validation."]
    tall = max(len(rung.row) for rung in found)
    heading = ("validation", "MAP@R", "P@1", "seconds")
    lines += ["", " " * tall + "".join(f"{text:>{width}}" for text, width in zip(heading, WIDTHS, strict=True))]
    for rung in sorted(found, key=lambda rung: not rung.row.startswith(UNTOUCHED[:-1])):  # the features first
        scores = [rung.validation, *(rung.test.get(metric) for metric in (SELECTED_BY, PRECISION))]
        cells = ["" if score is None else f"{100 * score:.1f}" for score in scores] + [f"{rung.seconds:.0f}"]
        mark = "  <" * (rung.row == decision.row) + f"  the same as {rung.same_as}" * (rung.same_as is not None)
        cells_in_line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
        lines.append(f"{rung.row:<{tall}}{cells_in_line}{mark}")
    trained = [rung.row for rung in found if not is_baseline(rung.row)]
    if not any(row.startswith("trunk_") for row in trained):
        lines.append("The trunk was not trained: give it more --minutes.")
    return [*lines, ""]


def row_in_words(row: str) -> str:
    """A row in words, a trained one with its name: `the whole trunk trained with ntxent (trunk_ntxent)`."""
    if not is_baseline(row):
        part = next((part for part in PARTS if row.startswith(part)), "")
        made = row.removeprefix(part).replace("_averaged", ", averaged with its start").replace("_pca", ", and a PCA")
        return f"{PARTS[part]}{made.replace('_', ' ')} ({row})" if part else row
    value = value_of(row) or PCA
    if value == FEATURES:
        return "the features"
    if value.startswith(f"{FEATURES}-"):
        return f"the features of {value.removeprefix(f'{FEATURES}-')}"
    size = value.removeprefix(WHITENING)
    to = f" to {size} numbers" if size.isdigit() else ""
    return f"{'a PCA' if value == PCA else 'a whitening'} of the features{to}"
