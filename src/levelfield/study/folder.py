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
from levelfield.core.shape import has_shape
from levelfield.data.hashes import file_hashes
from levelfield.study.jobs import (
    CHECKPOINT,
    JOB_SHAPE,
    MODEL_SHAPE,
    RESULT,
    TEST_SHAPE,
    Job,
    failed,
    folds_of,
    job_config,
    read_result,
    row_runs,
    study_jobs,
)
from levelfield.study.spec import OF, STUDY, StudySpec, digest, row_folder
from levelfield.study.state import StudyState

# The parts of a job's result that the ledger hashes: its numbers and their causes, without time and machine.
NUMBERS = ("configuration", "parameters", "seed", "checkpoint", "validation", "best_epoch", "failure")
# The test scores of a run.
SCORES = ("separated", "concatenated", "one_pca", "num_skipped")
RESULTS_FILE, SUMMARY_FILE = "results.csv", "summary.csv"
# The rows of an archive, without weights and logs.
ARCHIVED = "archived.json"
READ_ONLY = "read_only"  # the key in it of an archive that is not of a study of the user's
AGAIN = "delete this result.json and resume to run the job again"


class StudyFolder:
    """A study's folder, which need not exist yet, and its spec.

    Attributes:
        had_work: Whether the last `run_study` had anything to do.
    """

    had_work = False

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
        place = asdict(job)
        if place != {key: result.get(key) for key in place}:
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
        """Path in the folder to SHA-256, for every checkpoint that is tested; an unchanged file is read once.

        Raises:
            UserError: a file has changed since its job wrote it.
        """
        jobs = [job for each in self.state.tested_runs() for job in folds_of(self.spec, *each)]
        found = {job: self.state.results[job] for job in jobs}
        here = [job for job in jobs if job.method not in self.archived]
        for job, content in zip(here, file_hashes([str(self.checkpoint(job)) for job in here]), strict=True):
            if content.tobytes().hex() != found[job]["checkpoint"]:
                changed = f"{self.checkpoint(job)} has changed since its job finished"
                raise UserError(f"{changed}; delete {self.folder / job.path / RESULT} and resume to run the job again")
        return {str(job.path): result["checkpoint"] for job, result in found.items()}

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
        chosen = self.state.chosen(row)  # None if it is not searched
        return job_config(self.spec, Job(row, "run", 0, 0), {} if chosen is None else chosen.parameters)

    def distance_of(self, row: str) -> str:
        """The distance for retrieval of a row."""
        return self.test_config(row)["model"].get("distance", "cosine")

    def read_test(self, row: str, run: int) -> dict[str, Any] | None:
        """The test scores of one run; None before they exist.

        Raises:
            UserError: they are damaged, of another configuration, or of an evaluation that is not in the ledger.
        """
        path = self.test_file(row, run)
        result = read_result(path, TEST_SHAPE)
        if result is not None and result["configuration"] != self.test_hash(row):
            raise UserError(f"{path} belongs to another configuration; delete it and resume to test this run again")
        if result is not None and result["evaluation"] not in self._evaluations():
            raise UserError(f"{self.ledger_file} has no line for the evaluation of {path}; restore it from a copy")
        return result

    def tests(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Test scores by (row, run), from the last evaluation that has any.

        Raises:
            UserError: see `read_test`.
        """
        ids = self._evaluations()
        found = {each: test for each in row_runs(self.spec) if (test := self.read_test(*each)) is not None}
        last = max((ids.index(test["evaluation"]) for test in found.values()), default=0)
        return {each: test for each, test in found.items() if ids.index(test["evaluation"]) == last}

    def _evaluations(self) -> list[str]:
        return [line["id"] for line in read_lines(self.ledger_file) if line["event"] == EVALUATED]

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations on the study's test classes, by any command, in this user's ledger and the folder's copy, in
        the order of time."""
        return sorted(evaluations_beside(self.folder), key=lambda line: (line["time"], line["id"]))

    def is_finished(self) -> bool:
        """Whether all jobs are finished and scored in one evaluation; it imports no torch."""
        if self.state.to_do:
            return False
        evaluation = finished_evaluation(self.folder)
        if evaluation is None or evaluation["configuration"] != self.spec.configuration_hash():
            return False
        if evaluation["checkpoints"] != self.checkpoint_hashes():
            return False
        tests = [self.read_test(*each) for each in self.state.tested_runs()]
        return all(test is not None and test["evaluation"] == evaluation["id"] for test in tests)

    def refuse_foreign(self) -> None:
        """Raise UserError if the folder has something other than a study of the user's."""
        if self.is_read_only:
            raise UserError(
                f"{self.folder} is an archive to read; begin a study with it: levelfield study run FILE --from ARCHIVE"
            )
        found = self.folder.iterdir() if self.folder.is_dir() else [self.folder] if self.folder.exists() else []
        if not self.spec_file.exists() and any(not path.name.startswith(".") for path in found):  # as of a killed study
            raise UserError(f"{self.folder} is not empty and has no {STUDY}; choose another --output")


def scores_hash(test: Mapping[str, Any]) -> str:
    """SHA-256 of the test scores of a run, for the ledger."""
    return digest({key: test[key] for key in SCORES if key in test})
