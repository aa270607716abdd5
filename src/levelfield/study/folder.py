"""The folder of a study: its spec, results, test scores, ledger and locks."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from levelfield.core.configuration import Config
from levelfield.core.errors import UserError
from levelfield.core.files import read_json, write_atomically, write_json
from levelfield.core.ledger import EVALUATED, LEDGER, evaluations_beside, finished_evaluation, read_lines
from levelfield.core.shape import TEXT_OR_NONE, count, finite, has_shape, number
from levelfield.study.jobs import CHECKPOINT, RESULT, Job, failed, folds_of, job_config, row_runs, study_jobs
from levelfield.study.spec import OF, STUDY, StudySpec, digest, row_folder
from levelfield.study.state import StudyState

COMMON = {
    "configuration": str,
    "provenance?": {
        "code": {"levelfield": str, "commit": TEXT_OR_NONE, "modified": (bool, type(None))},
        "libraries": {str: str},
        "processor": str,
        "device?": str,
        **dict.fromkeys(("gpu?", "weights?"), TEXT_OR_NONE),
    },
}
# The `result.json` of a job, the parts of one that has a model, and that of a test.
JOB_SHAPE = COMMON | {
    "parameters": {str: object},
    "seed": count,
    "seconds": finite,
    "failure?": str,
    **{key: {str: str} for key in ("sources?", "files?")},
    "classes?": [[number]],  # MAP@R of each validation class: sum and number of queries
    "best_epoch?": int,  # -1: the start was best
    "alpha?": finite,
    "ending?": {"steps": count, "best_step": count, "stopped_by?": str},
    "data?": {
        **dict.fromkeys(("fingerprint", "split"), str),
        "dataset": {"class_path": str, "init_args?": {str: object}},
        **{key: [str] for key in ("train_classes", "val_classes")},
    },
}
MODEL_SHAPE = {"checkpoint": str, "validation": {str: number}}
TEST_SHAPE = COMMON | {
    **dict.fromkeys(("method", "evaluation"), str),
    "separated": [{str: number}],
    "concatenated": {str: number},
    "effective_rank?": [number],
    "num_skipped?": count,
    "data?": {"fingerprint": str},
}
# The parts of a job's result that the ledger hashes: its numbers and their causes, without time and machine.
NUMBERS = ("configuration", "parameters", "seed", "checkpoint", "validation", "best_epoch", "failure")
# The test scores of a run.
SCORES = ("separated", "concatenated", "num_skipped")
RESULTS_FILE, SUMMARY_FILE = "results.csv", "summary.csv"
# The rows of an archive, without weights and logs.
ARCHIVED = "archived.json"
READ_ONLY = "read_only"  # the key in it of an archive that is not of a study of the user's
AGAIN = "delete this result.json and resume to run the job again"


class StudyFolder:
    """A study's folder, which need not exist yet, and its spec."""

    had_work = False  # whether the last `run_study` had anything to do

    def __init__(self, folder: Path, spec: StudySpec) -> None:
        self.folder, self.spec = folder.absolute(), spec
        self.spec_file = self.folder / STUDY
        self.ledger_file = self.folder / LEDGER
        self.results_file, self.summary_file = self.folder / RESULTS_FILE, self.folder / SUMMARY_FILE
        self.report_folder = self.folder / "report"

    @classmethod
    def begun(cls, folder: Path) -> "StudyFolder":
        """The study that has begun in a folder.

        Raises:
            UserError: the folder has no study.
        """
        if not (folder / STUDY).exists():
            raise UserError(f"no study in {folder}; begin it with levelfield study run, or give its --output")
        return cls(folder, StudySpec.read(folder / STUDY))

    def write_spec(self) -> None:
        """Write `study.yaml`, which marks the study as begun."""
        write_atomically(self.spec_file, self.spec.to_yaml().encode())

    # Results.

    @cached_property
    def stored(self) -> dict[Job, dict[str, Any]]:
        """The content of every `result.json`, of any configuration.

        Raises:
            UserError: one is damaged.
        """
        found = {job: self._read_job(job) for job in study_jobs(self.spec)}
        return {job: result for job, result in found.items() if result is not None}

    @cached_property
    def state(self) -> StudyState:
        """The state of the study, from the results on disk at the first access.

        Raises:
            UserError: a `result.json` is damaged, or belongs to another job or configuration.
        """
        for job, result in self.stored.items():
            if result["configuration"] != self.spec.row_hashes[job.method]:
                raise UserError(f"{self.folder / job.path / RESULT} belongs to another configuration; {AGAIN}")
        return StudyState(self.spec, self.stored)

    def read_again(self) -> StudyState:
        """Read all results again, because files may have been deleted or changed."""
        self._forget()
        return self.state

    def _forget(self) -> None:
        for name in ("stored", "state", "_archive"):
            vars(self).pop(name, None)

    def _read_job(self, job: Job) -> dict[str, Any] | None:
        path = self.folder / job.path / RESULT
        result = read_result(path, JOB_SHAPE)
        if result is None:
            return None
        if not asdict(job).items() <= result.items():
            raise UserError(f"{path} belongs to another job; {AGAIN}")
        if not failed(result):
            read_result(path, MODEL_SHAPE)
            needed = job.stage == "run" and job.method not in self.archived
            if needed and not self.checkpoint(job).is_file():
                raise UserError(f"{self.checkpoint(job)} is missing, but its {RESULT} exists; {AGAIN}")
        return result

    def has_results(self, row: str) -> bool:
        """Whether a job of a row has finished, in any replicate, judged only by the names of files."""
        jobs = f"jobs/{row_folder(row)}/*/fold*/{RESULT}"
        return any(path for place in ("", "replicates/*/") for path in self.folder.glob(place + jobs))

    def remove_row(self, row: str) -> None:
        """Delete all results of a row and of rows derived from it."""
        for derived, made in self.spec.derived.items():
            if made[OF] == row:
                self.remove_row(derived)
        shutil.rmtree(self.folder / "jobs" / row_folder(row), ignore_errors=True)
        if row in self.archived:
            kept = {key: about for key, about in self._archive["rows"].items() if key != row}
            write_json(self.folder / ARCHIVED, {**self._archive, "rows": kept})
        self._forget()

    def checkpoint(self, job: Job) -> Path:
        """The checkpoint of a job."""
        return self.folder / job.path / CHECKPOINT

    def checkpoint_hashes(self) -> dict[str, str]:
        """Path of the job in the folder to SHA-256, as its result has it, for every checkpoint that is tested."""
        jobs = [job for each in self.state.tested_runs() for job in folds_of(self.spec, *each)]
        return {str(job.path): self.state.results[job]["checkpoint"] for job in jobs}

    def result_hashes(self) -> dict[str, str]:
        """Row to SHA-256 of the results of all its jobs, for the ledger."""
        found: dict[str, list[Any]] = {job.method: [] for job in self.state.results}
        for job, result in sorted(self.state.results.items(), key=lambda item: str(item[0].path)):
            found[job.method].append([str(job.path), {key: result[key] for key in NUMBERS if key in result}])
        return {row: digest(results) for row, results in found.items()}

    # Rows whose results were computed elsewhere, or with other source code.

    @property
    def archived(self) -> frozenset[str]:
        """The rows of an archive: only the results of their jobs are here."""
        return frozenset(self._archive["rows"])

    @property
    def is_read_only(self) -> bool:
        """Whether this is an archive that is only read: nothing that its rows name is built."""
        return READ_ONLY in self._archive

    @cached_property
    def _archive(self) -> dict[str, Any]:
        path = self.folder / ARCHIVED
        content = read_json(path) if path.is_file() else {"rows": {}}
        if not has_shape(content, {"rows": {str: {str: object}}}):
            raise UserError(f"{path} is damaged; restore it from a copy of the study")
        return dict(content)

    # Test scores.

    def test_file(self, row: str, run: int) -> Path:
        """The file with the test scores of one run."""
        return (self.folder / Job(row, "run", run, 0).path).with_name("test") / RESULT

    def test_hash(self, row: str) -> str:
        """SHA-256 of everything that the test scores of a row depend on, except its checkpoints."""
        folds = [] if self.spec.blocks is None else [self.spec.folds]
        return digest([self.spec.row_hashes[row], self.spec.metrics, *folds])

    def test_config(self, row: str) -> Config:
        """The configuration of a row with the setting that its search selected."""
        job = Job(row, "run", 0, 0)
        return job_config(self.spec, job, self.state.parameters(job) or {})

    def distance_of(self, row: str) -> str:
        """The distance for retrieval of a row."""
        return self.test_config(row)["model"].get("distance", "cosine")

    def stored_tests(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Test scores by (row, run), each of any evaluation.

        Raises:
            UserError: some are damaged, of another configuration, or of an evaluation that is not in the ledger.
        """
        found, evaluations = {}, self._evaluations()
        for row, run in row_runs(self.spec):
            path = self.test_file(row, run)
            result = read_result(path, TEST_SHAPE)
            if result is None:
                continue
            if result["configuration"] != self.test_hash(row):
                raise UserError(f"{path} belongs to another configuration; delete it and resume to test this run again")
            if result["evaluation"] not in evaluations:
                raise UserError(f"{self.ledger_file} has no line for the evaluation of {path}; restore it from a copy")
            found[row, run] = result
        return found

    def tests(self, evaluation: str | None = None) -> dict[tuple[str, int], dict[str, Any]]:
        """Test scores by (row, run) from an evaluation, by default the last that has any; raises as `stored_tests`."""
        stored = self.stored_tests()
        ids = (test["evaluation"] for test in stored.values())
        wanted = evaluation or max(ids, key=self._evaluations().index, default=None)
        return {each: test for each, test in stored.items() if test["evaluation"] == wanted}

    def _evaluations(self) -> list[str]:
        return [line["id"] for line in read_lines(self.ledger_file) if line["event"] == EVALUATED]

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations on the study's test classes, by any command, in this user's ledger and the folder's copy, in
        the order of time."""
        return sorted(evaluations_beside(self.folder), key=lambda line: (line["time"], line["id"]))

    def last_evaluation(self) -> dict[str, Any] | None:
        """The finished evaluation of all complete runs, with these results; None if there is none."""
        last = finished_evaluation(self.folder)
        now = {"configuration": self.spec.configuration_hash(), "checkpoints": self.checkpoint_hashes()}
        if last is None or not now.items() <= last.items():
            return None
        return last if self.tests(last["id"]).keys() >= {*self.state.tested_runs()} else None

    def is_finished(self) -> bool:
        """Whether all jobs are finished and scored in one evaluation; it imports no torch."""
        return not self.state.to_do and self.last_evaluation() is not None

    def refuse_foreign(self) -> None:
        """Raise UserError if the folder has something other than a study of the user's."""
        if self.is_read_only:
            raise UserError(f"{self.folder} is an archive to read; to go on: levelfield study run FILE --from ARCHIVE")
        if not self.spec_file.exists() and any(self.folder.glob("[!.]*")):  # a killed study may leave `.x.tmp`
            raise UserError(f"{self.folder} is not empty and has no {STUDY}; choose another --output")


def scores_hash(test: Mapping[str, Any]) -> str:
    """SHA-256 of the test scores of a run, for the ledger."""
    return digest({key: test[key] for key in SCORES if key in test})


def read_result(path: Path, shape: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read a `result.json` of a shape; None if the job is not finished.

    Raises:
        UserError: the file is damaged. It was written completely, so it has changed since then.
    """
    if not path.exists():
        return None
    if not has_shape(content := read_json(path), shape):
        raise UserError(f"{path} is damaged; delete it and resume the study to run the job again")
    return dict(content)
