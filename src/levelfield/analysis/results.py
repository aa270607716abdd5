"""`results.csv` and `summary.csv`, derived from the `result.json` files."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from levelfield.analysis.statistics import t_interval
from levelfield.core.files import write_atomically
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import failed
from levelfield.study.lock import writing
from levelfield.study.replicates import replicates_of
from levelfield.study.spec import StudySpec, is_one_pca

if TYPE_CHECKING:
    import pandas as pd

# A run's folds are scored one by one, and with their embeddings concatenated.
EMBEDDING_KINDS = ("separated", "concatenated")
REPLICATE = "replicate"  # a column of studies with replicates


def embedding_kinds(spec: StudySpec) -> tuple[str, ...]:
    """The kinds that a study has; a run of one model has nothing to concatenate."""
    return EMBEDDING_KINDS[:1] if spec.folds == 1 else EMBEDDING_KINDS


@dataclass(frozen=True)
class ResultRow:
    """One score: a line of `results.csv`.

    Args:
        method: Name in the study. `pretrained` concatenates the PCAs of the folds; `pretrained_one_pca` is one PCA to
            folds x embedding size.
        stage: `trial` or `run` (scores of the validation fold), or `test`.
        trial: Trial of the search; None outside it.
        run: Repetition, from 0.
        fold: Fold, from 0; None if the folds' embeddings are concatenated.
        embedding: `separated` (one fold's) or `concatenated`.
        value: The score, a fraction, or the unchanged value of the user's own metric.
        replicate: Repetition of the whole study with other halves, from 0; None in a study without replicates, whose
            table has no such column.
    """

    method: str
    stage: str
    trial: int | None
    run: int | None
    fold: int | None
    embedding: str
    metric: str
    value: float
    replicate: int | None = None


@dataclass(frozen=True)
class SummaryRow:
    """Mean over the runs of one test score: a line of `summary.csv`.

    Args:
        embedding: `separated`: mean of the folds' scores; `concatenated`: score of the concatenated embeddings.
        mean: Mean over the runs or replicates, of `ResultRow.value`.
        ci95: Half width of the 95% t-interval; None with too few runs.
        n: Number of runs, or of replicates.
    """

    method: str
    embedding: str
    metric: str
    mean: float
    ci95: float | None
    n: int


def collect_rows(study: StudyFolder, tests: Mapping[tuple[str, int], dict[str, Any]] | None = None) -> list[ResultRow]:
    """All scores so far, sorted.

    Args:
        tests: Test scores by method and run; None reads the stored ones.
    """
    if study.spec.replicates > 1:
        found = [(int(each.folder.name), collect_rows(each)) for each in replicates_of(study)]
        return [replace(row, replicate=number) for number, rows in found for row in rows]
    rows = list[ResultRow]()

    def add(scores: Mapping[str, float], method: str, stage: str, number: int, fold: int | None = None) -> None:
        trial, run = (number, None) if stage == "trial" else (None, number)
        kind = EMBEDDING_KINDS[fold is None]
        rows.extend(ResultRow(method, stage, trial, run, fold, kind, *score) for score in scores.items())

    complete = set(study.state.tested_runs())
    for job, result in study.state.results.items():
        # A run without all folds would be a mean over other folds.
        if not failed(result) and (job.stage != "run" or (job.method, job.number) in complete):
            add(result["validation"], job.method, job.stage, job.number, job.fold)
    for (method, run), tested in (study.tests() if tests is None else tests).items():
        if is_one_pca(method):  # as long as the concatenated embeddings, and compared with them
            add(tested["separated"][0], method, "test", run)
            continue
        for fold, scores in enumerate(tested["separated"]):
            add(scores, method, "test", run, fold)
        add(tested["concatenated"], method, "test", run)
    return sorted(rows, key=lambda row: [-1 if value is None else value for value in vars(row).values()])


def run_scores(rows: Iterable[ResultRow], stage: str = "test") -> dict[tuple[str, str, str], list[float]]:
    """Score of each run, the mean of its folds' scores, by method, embedding and metric, sorted.

    In a study with replicates, the score of each replicate, the mean over its runs.
    """
    scores: dict[tuple[str, str, str], dict[int, dict[int, list[float]]]]
    scores = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        if row.stage == stage:
            scores[row.method, row.embedding, row.metric][row.replicate or 0][row.run or 0].append(row.value)
    found = {}
    for key, replicates in sorted(scores.items()):
        runs = [[fmean(values) for _, values in sorted(each.items())] for _, each in sorted(replicates.items())]
        found[key] = runs[0] if len(runs) == 1 else [fmean(each) for each in runs]
    return found


def summarise(rows: Iterable[ResultRow], stage: str = "test") -> list[SummaryRow]:
    """Mean over runs or replicates with its interval, per method, embedding and metric, sorted."""
    found = run_scores(rows, stage).items()
    return [SummaryRow(*key, fmean(runs), t_interval(runs), len(runs)) for key, runs in found]


def mean_scores(rows: Iterable[ResultRow]) -> dict[str, SummaryRow]:
    """Row of the table to its test MAP@R, separated embeddings."""
    return {row.method: row for row in summarise(rows) if (row.embedding, row.metric) == ("separated", SELECTED_BY)}


def as_frame(rows: Sequence[ResultRow] | Sequence[SummaryRow], kind: type[ResultRow | SummaryRow]) -> "pd.DataFrame":
    """One column per field, `replicate` only if rows have one."""
    import pandas as pd  # half a second that `study status` does not need

    frame = pd.DataFrame([*map(vars, rows)], columns=[each.name for each in fields(kind)])
    types = {**dict.fromkeys(("trial", "run", "fold", REPLICATE), "Int64"), "ci95": "float"}
    frame = frame.astype({column: dtype for column, dtype in types.items() if column in frame})
    return frame.drop(columns=[name for name in frame if name == REPLICATE and frame[name].isna().all()])


def to_csv(rows: Sequence[ResultRow] | Sequence[SummaryRow], kind: type[ResultRow | SummaryRow]) -> bytes:
    """The table as CSV; floats without loss, None as an empty cell."""
    return as_frame(rows, kind).to_csv(index=False, lineterminator="\n").encode()


def write_tables(study: StudyFolder) -> list[ResultRow]:
    """Write `results.csv` and `summary.csv` again, and return the rows of `results.csv`."""
    with writing(study.folder):
        study.read_again()  # under the lock, so that the last writer is the last reader
        rows = collect_rows(study)
        tables = {study.results_file: to_csv(rows, ResultRow), study.summary_file: to_csv(summarise(rows), SummaryRow)}
        for file, content in tables.items():
            write_atomically(file, content)
    return rows
