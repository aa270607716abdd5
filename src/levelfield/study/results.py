"""The derived files `results.csv` and `summary.csv`, from the `result.json` files alone."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.storage.atomic import write_atomically
from levelfield.storage.ledger import Ledger
from levelfield.storage.lock import Lock
from levelfield.study.jobs import EMBEDDINGS as TEST_EMBEDDINGS
from levelfield.study.jobs import RESULT, Job, check_whole, failed, job_hash, method_runs, read_result
from levelfield.study.spec import StudySpec, digest
from levelfield.study.state import StudyState
from levelfield.study.statistics import mean, t_interval

EMBEDDINGS = ("separated", "concatenated")


@dataclass(frozen=True)
class ResultRow:
    """One score: a line of `results.csv`.

    Args:
        method: Name in the study, `pretrained` for the baseline.
        stage: `trial` or `run` (scores of the validation fold), or `test`.
        trial: Trial of the search; None outside it.
        run: Repetition, from 0.
        fold: Fold, from 0; None where the folds' embeddings are concatenated.
        embedding: `separated` (one fold's) or `concatenated`.
        metric: Name of the metric.
        value: The score, a fraction.
    """

    method: str
    stage: str
    trial: int | None
    run: int | None
    fold: int | None
    embedding: str
    metric: str
    value: float

    def sort_key(self) -> tuple[Any, ...]:
        numbers = tuple(-1 if number is None else number for number in (self.trial, self.run, self.fold))
        return (self.method, self.stage, *numbers, self.embedding, self.metric)


@dataclass(frozen=True)
class SummaryRow:
    """Mean over the runs of one test score: a line of `summary.csv`.

    Args:
        method: Name in the study.
        embedding: `separated`: mean of the folds' scores; `concatenated`: score of the folds' embeddings together.
        metric: Name of the metric.
        mean: Mean over the runs, a fraction.
        ci95: Half width of the 95% t-interval; None with too few runs.
        n: Number of runs.
    """

    method: str
    embedding: str
    metric: str
    mean: float
    ci95: float | None
    n: int


def tested_path(method: str, run: int) -> Path:
    """Where the test scores of one run of a method are, relative to the study folder."""
    return Path("jobs", method, f"run{run}", "test", RESULT)


def tested_hash(spec: StudySpec, method: str, run: int) -> str:
    """What the test scores of one run depend on besides its checkpoints."""
    job = job_hash(spec, Job(method, "run", run, 0))
    return digest([job, spec.metrics]) if spec.metrics else job


def read_test(study_folder: Path, spec: StudySpec, method: str, run: int) -> dict[str, Any] | None:
    """The test scores of one run of a method, None before they exist.

    Raises:
        UserError: the file is damaged or of another configuration.
    """
    path = study_folder / tested_path(method, run)
    result = read_result(path)
    if result is None:
        return None
    check_whole(path, result, ("opening", "separated", "concatenated"))
    if result["configuration"] != tested_hash(spec, method, run):
        raise UserError(f"{path} is of another configuration; delete it and resume to test this run again")
    return result


def read_tests(study_folder: Path, spec: StudySpec) -> dict[tuple[str, int], dict[str, Any]]:
    """Test scores by method and run, those of the latest opening of the test classes.

    Raises:
        UserError: a file is damaged, or the ledger does not hold its opening as it was.
    """
    found = {(method, run): read_test(study_folder, spec, method, run) for method, run in method_runs(spec)}
    tests = {key: test for key, test in found.items() if test is not None}
    ledger = Ledger(study_folder / "ledger.jsonl")
    for (method, run), test in tests.items():
        ledger.check_scored(study_folder / tested_path(method, run), test["opening"], test.get("ledger"))
    latest = max((test["opening"] for test in tests.values()), default=0)
    return {key: test for key, test in tests.items() if test["opening"] == latest}


def check_ledger(study_folder: Path, spec: StudySpec) -> None:
    """Refuse a study whose test classes were opened and whose ledger does not say so.

    Raises:
        UserError: the ledger is missing or was edited, or a file is damaged.
    """
    read_tests(study_folder, spec)
    ledger = Ledger(study_folder / "ledger.jsonl")
    if not ledger.openings:
        for path in sorted(study_folder.glob(f"jobs/*/run*/fold*/{TEST_EMBEDDINGS}")):
            ledger.check_scored(path, 1, None)


def collect_rows(
    study_folder: Path, spec: StudySpec, tests: Mapping[tuple[str, int], dict[str, Any]] | None = None
) -> list[ResultRow]:
    """All scores there are so far, sorted.

    Args:
        study_folder: The study's folder.
        spec: The study.
        tests: Test scores by method and run; None reads the stored ones.
    """
    rows = []
    state = StudyState(study_folder, spec)
    broken = {(job.method, job.number) for job in state.failures("run")}
    for job, result in state.results.items():
        # A run without a model of each fold would be a mean over other folds than the others'.
        if not failed(result) and (job.stage == "trial" or (job.method, job.number) not in broken):
            number = {"trial": job.number} if job.stage == "trial" else {"run": job.number}
            place = {"trial": None, "run": None, **number}
            for metric, value in result["validation"].items():
                rows.append(
                    ResultRow(
                        job.method, job.stage, **place, fold=job.fold, embedding="separated", metric=metric, value=value
                    )
                )
    for (method, run), tested in (read_tests(study_folder, spec) if tests is None else tests).items():
        for fold, scores in enumerate(tested["separated"]):
            for metric, value in scores.items():
                rows.append(ResultRow(method, "test", None, run, fold, "separated", metric, value))
        for metric, value in tested["concatenated"].items():
            rows.append(ResultRow(method, "test", None, run, None, "concatenated", metric, value))
    return sorted(rows, key=ResultRow.sort_key)


def summarise(rows: Iterable[ResultRow], stage: str = "test") -> list[SummaryRow]:
    """Mean over runs with its interval, per method, embedding and metric, sorted.

    A run's separated score is the mean of its folds' scores.
    """
    scores: dict[tuple[str, str, str], dict[int | None, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.stage == stage:
            scores[row.method, row.embedding, row.metric][row.run].append(row.value)
    summary = []
    for (method, embedding, metric), by_run in sorted(scores.items()):
        runs = [mean(values) for _, values in sorted(by_run.items(), key=lambda item: item[0] or 0)]
        summary.append(SummaryRow(method, embedding, metric, mean(runs), t_interval(runs), len(runs)))
    return summary


def to_csv(rows: Sequence[ResultRow] | Sequence[SummaryRow], kind: type[ResultRow] | type[SummaryRow]) -> bytes:
    """CSV with one column a field; floats by `repr`, which reads back to the same number, and None empty."""
    text = io.StringIO()
    columns = [field.name for field in fields(kind)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (getattr(row, column) for column in columns)
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in values])
    return text.getvalue().encode()


def write_tables(study_folder: Path, spec: StudySpec) -> list[ResultRow]:
    """Derive `results.csv` and `summary.csv` anew and return the rows of the former."""
    with Lock(study_folder, "tables", "tables"):  # `study report` may be asked for while the study runs
        rows = collect_rows(study_folder, spec)  # here: who writes last has read last
        write_atomically(study_folder / "results.csv", to_csv(rows, ResultRow))
        write_atomically(study_folder / "summary.csv", to_csv(summarise(rows), SummaryRow))
    return rows
