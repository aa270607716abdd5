"""A study where it lies: made where a command or a worker begins, and handed down."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.storage.atomic import make_durable, write_json
from levelfield.storage.file_hash import file_hash
from levelfield.storage.ledger import Ledger
from levelfield.study.definition.spec import STUDY, StudySpec
from levelfield.study.definition.study_file import spec_from_yaml
from levelfield.study.jobs.job import (
    FAILURE_KEYS,
    LOGS,
    RESULT,
    RESULT_KEYS,
    Job,
    check_whole,
    failed,
    job_hash,
    job_seed,
    read_result,
)
from levelfield.study.jobs.state import StudyState
from levelfield.study.search.asked_once import AskedOnce

# In the folder of a study that was unpacked from an archive: the methods whose results came without weights and logs.
ARCHIVED = "archived.json"
SUMMARY = "summary.csv"


class StudyRecord:
    """A study's folder, which need not be there yet, and its definition, with the jobs that are done there."""

    def __init__(self, folder: Path, spec: StudySpec) -> None:
        self.folder = folder
        self.spec = spec
        self.ledger = Ledger(folder)
        self.definition_file = folder / STUDY
        self.results_file = folder / "results.csv"
        self.summary_file = folder / SUMMARY
        self.report_folder = folder / "report"
        self._hashes: dict[str, str] = {}

    @classmethod
    def begun(cls, folder: Path) -> "StudyRecord":
        """The study that a folder holds.

        Raises:
            UserError: it holds none.
        """
        if not (folder / STUDY).exists():
            raise UserError(f"{folder} holds no study; begin it with `levelfield study run`, or name it with --output")
        return cls(folder, spec_from_yaml(folder / STUDY))

    @cached_property
    def archived(self) -> frozenset[str]:
        """The methods that were unpacked from an archive: of their jobs the results are here, and nothing else.

        Raises:
            UserError: the file that says so is damaged.
        """
        path = self.folder / ARCHIVED
        if not path.is_file():
            return frozenset()
        try:
            return frozenset(map(str, json.loads(path.read_text(encoding="utf-8"))["methods"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path} is damaged; unpack the archive again, into another folder") from None

    @cached_property
    def state(self) -> StudyState:
        """Where the study stands; `learn`, `refresh` and `read_again` bring it up to date.

        Raises:
            UserError: a `result.json` is damaged or of another configuration.
        """
        state = StudyState(self.spec, AskedOnce(self.folder))
        self._look(state, state.every_job)
        return state

    def refresh(self) -> list[Job]:
        """Look for results of all jobs that were not done before, and return those that are: a file opened for each."""
        return self.learn(self.state.every_job)

    def learn(self, jobs: Iterable[Job]) -> list[Job]:
        """Look for results of some jobs, and return those that were not known to be done before."""
        return self._look(self.state, jobs)

    def read_again(self) -> StudyState:
        """Read every result anew: one may have been deleted or damaged since."""
        vars(self).pop("state", None)
        return self.state

    def _look(self, state: StudyState, jobs: Iterable[Job]) -> list[Job]:
        unknown = [job for job in jobs if job not in state.results]
        new = {job: result for job in unknown if (result := self.read_job(job)) is not None}
        state.results |= new
        return list(new)

    def read_job(self, job: Job) -> dict[str, Any] | None:
        """The result of a job, None where it is to do.

        Raises:
            UserError: the result is damaged, or belongs to another job or configuration.
        """
        path = self.folder / job.path / RESULT
        result = read_result(path)
        if result is None:
            return None
        check_whole(path, result, FAILURE_KEYS if failed(result) else RESULT_KEYS)
        place = asdict(job)
        found = {key: result.get(key) for key in place}
        if found != place or result["configuration"] != self._hash(job):
            raise UserError(
                f"{path} is the result of another job or configuration ({found}); "
                "delete it and resume to do this job again"
            )
        needs_checkpoint = job.stage == "run" and not failed(result) and job.method not in self.archived
        if needs_checkpoint and not (self.folder / job.checkpoint).is_file():
            raise UserError(
                f"{self.folder / job.checkpoint} is missing beside a finished {RESULT}; "
                f"delete that {RESULT} and resume to do this job again"
            )
        return result

    def _hash(self, job: Job) -> str:
        if job.method not in self._hashes:
            self._hashes[job.method] = job_hash(self.spec, job)
        return self._hashes[job.method]

    def finish_job(self, job: Job, parameters: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """Write the job's `result.json`, its last file: from here on the job is done.

        Args:
            result: What the job found, or `failure` and why.
        """
        whole: dict[str, Any] = {
            **asdict(job),
            "configuration": self._hash(job),
            "parameters": dict(parameters),
            "seed": job_seed(self.spec.seed, job),
        }
        folder, checkpoint = self.folder / job.path, self.folder / job.checkpoint
        if "failure" not in result:
            make_durable(checkpoint)
            whole["checkpoint"] = file_hash(checkpoint)
        written = [name for name in LOGS if (folder / name).is_file()]
        for name in written:
            make_durable(folder / name)
        whole["files"] = {name: file_hash(folder / name) for name in written}
        whole |= result
        write_json(folder / RESULT, whole)
        if job.stage != "run":  # nothing is tested with it, and hundreds of them fill a disk
            checkpoint.unlink(missing_ok=True)
        return whole

    def check_data(self, identity: Mapping[str, Any]) -> None:
        """Refuse to go on with other data than the finished jobs had.

        Args:
            identity: The training half as it is now, by `MetricDataModule.identity()`.

        Raises:
            UserError: names the job, what has changed and the remedy.
        """
        for job, result in self.state.results.items():
            before = result.get("data", identity)
            if before["fingerprint"] != identity["fingerprint"]:
                raise UserError(
                    f"{self.folder / job.path}: the data set has changed on disk since this job "
                    f"({_difference(before, identity)}); restore it, or choose another --output"
                )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old, new = ({*identity["train_classes"], *identity["val_classes"]} for identity in (before, now))
    changes = [f"class {min(old - new)!r} has left the training half"] if old - new else []
    changes += [f"class {min(new - old)!r} has joined it"] if new - old else []
    return ", ".join(changes) or "a class of the test half, or a sample, its class or its size in the training half"
