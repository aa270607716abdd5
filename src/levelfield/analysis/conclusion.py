"""What a study says to somebody who wants one embedding of their own data: whether to train, and with which method."""

from collections.abc import Sequence
from statistics import mean

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, compare_all
from levelfield.analysis.results import ResultRow, summarise
from levelfield.analysis.verdicts import in_words
from levelfield.metrics.table import SELECTED_BY
from levelfield.study.definition.spec import StudySpec, is_baseline
from levelfield.study.jobs.job import folds_of
from levelfield.study.record import StudyRecord


def best_method(rows: Sequence[ResultRow], spec: StudySpec) -> str:
    """The trained method with the highest mean MAP@R of separated embeddings on the test classes."""
    trained = _trained(spec)
    tested = [row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)]
    return max((row for row in tested if row.method in trained), key=lambda row: row.mean).method


def conclusion_lines(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """The best method over each row without training, and which methods cannot be told from it.

    Holm's correction over a baseline is over all trained methods, among which the best was found.
    """
    trained, best = _trained(spec), best_method(rows, spec)
    lines = ["Does training pay?"]
    for baseline in filter(is_baseline, spec.rows):
        found = compare_all(rows, trained, baseline=baseline)
        lines += [f"  {in_words(each)}" for each in found if (each.kind, each.method) == (OVER_BASELINE, best)]
    pairs = [each for each in compare_all(rows, trained) if each.kind == PAIR and best in (each.method, each.other)]
    level = [each.other if each.method == best else each.method for each in pairs if not each.shown]
    lines.append(f"Which method? {best} has the highest MAP@R of {len(trained)}.")
    if level:
        lines.append(f"  no difference from it is shown for {', '.join(level)}")
    elif pairs:
        lines.append("  a difference from it is shown for each of the others")
    return lines


def usual_epochs(record: StudyRecord, method: str) -> int:
    """Epochs to train the method for where nothing is validated: the mean of its runs' best ones, at least 1."""
    results, spec = record.state.results, record.spec
    jobs = [job for run in range(spec.runs) for job in folds_of(spec, method, run)]
    epochs = [results[job]["best_epoch"] + 1 for job in jobs if "best_epoch" in results.get(job, {})]
    return max(1, round(mean(epochs))) if epochs else 1


def _trained(spec: StudySpec) -> list[str]:
    return [method for method in spec.methods if not is_baseline(method)]
