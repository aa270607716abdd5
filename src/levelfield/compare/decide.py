"""The decision of `levelfield compare`: validation chooses a row, the test classes measure it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from levelfield.analysis.results import collect_rows
from levelfield.metrics.definitions import SELECTED_BY, SHOWN_METRICS
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import folds_of
from levelfield.study.spec import BASELINE, FEATURES, PCA, WHITENING, StudySpec, is_baseline, value_of

PRECISION = "precision_at_1"
UNTOUCHED = f"{BASELINE}[{FEATURES}]"
WIDTHS = (12, 10, 10, 10)


@dataclass(frozen=True)
class Rung:
    """A row of the ladder.

    Attributes:
        validation: MAP@R of the validation classes, a fraction, the mean over folds.
        test: Metric to the test score, a fraction, the mean over folds; empty before the test.
        of_first_fold: The same for fold 0's checkpoint.
        seconds: Total time of its jobs.
    """

    row: str
    validation: float
    test: dict[str, float]
    of_first_fold: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Decision:
    """The row to use.

    Attributes:
        features: The row of the untouched features.
        of_fold: The scores of the first fold of the row to use.
    """

    row: str
    features: str
    of_fold: str


def rungs(study: StudyFolder) -> list[Rung]:
    """The rows with all folds finished, from the cheapest to the most expensive."""
    rows, found = collect_rows(study), []
    for name in study.spec.rows:
        jobs = folds_of(study.spec, name, 0)
        results = [study.state.results.get(job) for job in jobs]
        scores = [result["validation"][SELECTED_BY] for result in results if result and result.get("validation")]
        if len(scores) < len(jobs):
            continue
        tested = [
            row for row in rows if (row.method, row.stage, row.run, row.embedding) == (name, "test", 0, "separated")
        ]
        metrics = dict.fromkeys(row.metric for row in tested)
        found.append(
            Rung(
                name,
                fmean(scores),
                {metric: fmean(row.value for row in tested if row.metric == metric) for metric in metrics},
                {row.metric: row.value for row in tested if row.fold == 0},
                sum(result["seconds"] for result in results if result),
            )
        )
    return found


def decide(found: Sequence[Rung]) -> Decision:
    """The row with the highest validation MAP@R, of equal rows the cheaper; test scores have no say."""
    untouched = [rung for rung in found if rung.row.startswith(UNTOUCHED[:-1])]
    features = max(untouched, key=lambda rung: rung.validation)
    best = max([features, *found], key=lambda rung: rung.validation)  # the first of equals
    scores = ", ".join(f"{SHOWN_METRICS[m]} {100 * best.of_first_fold[m]:.1f}" for m in (SELECTED_BY, PRECISION))
    return Decision(best.row, features.row, f"{scores} percent on the test classes")


def decision_lines(decision: Decision, found: Sequence[Rung], spec: StudySpec) -> list[str]:
    """The decision in plain words, then the table of the rows in percent."""
    of = {rung.row: rung for rung in found}
    best, features = of[decision.row], of[decision.features]
    of_folds = f"on {spec.folds} of {spec.blocks or spec.folds} folds"
    words = []
    for key in (SELECTED_BY, PRECISION):
        score, untrained = (round(100 * rung.test[key], 1) for rung in (best, features))
        gain = round(score - untrained, 1) + 0.0
        words.append(f"{SHOWN_METRICS[key]} {score} (untrained features {untrained}: {gain:+})")
    first = f"Use {_in_words(decision.row)}: on unseen classes {' and '.join(words)}, in percent."
    chosen = f"Validation chose it {of_folds}. "
    if best is features:
        first, chosen = f"Use the features as they are: nothing has a higher validation MAP@R {of_folds}.", ""
    lines = [first, f"{chosen}The test classes were scored after validation."]
    tall = max(len(rung.row) for rung in found)
    heading = ("validation", "MAP@R", "P@1", "seconds")
    lines += ["", " " * tall + "".join(f"{text:>{width}}" for text, width in zip(heading, WIDTHS, strict=True))]
    for rung in sorted(found, key=lambda rung: not rung.row.startswith(UNTOUCHED[:-1])):  # the features first
        scores = [rung.validation, *(rung.test.get(metric) for metric in (SELECTED_BY, PRECISION))]
        cells = ["" if score is None else f"{100 * score:.1f}" for score in scores] + [f"{rung.seconds:.0f}"]
        mark = "  <" if rung.row == decision.row else ""
        cells_in_line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
        lines.append(f"{rung.row:<{tall}}{cells_in_line}{mark}")
    trained = [rung.row for rung in found if not is_baseline(rung.row)]
    if not any(row.startswith("trunk_") for row in trained):
        lines.append("The trunk was not trained: give it more --minutes.")
    return [*lines, ""]


def _in_words(row: str) -> str:
    """An untrained row in words; a trained one by its name."""
    if not is_baseline(row):
        return row
    value = value_of(row) or PCA
    if value.startswith(f"{FEATURES}-"):
        return f"the features of {value.removeprefix(f'{FEATURES}-')}"
    size = value.removeprefix(WHITENING)
    to = f" to {size} numbers" if size.isdigit() else ""
    return f"{'a PCA' if value == PCA else 'a whitening'} of the features{to}"
