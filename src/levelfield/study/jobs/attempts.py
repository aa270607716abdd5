"""What became of earlier attempts at a job: processes that died over it, memory that was exhausted, errors."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from levelfield.storage.atomic import read_json, write_json
from levelfield.study.definition.spec import baseline_of, is_baseline
from levelfield.study.definition.sweep import method_folder
from levelfield.study.jobs.job import Job
from levelfield.training.callbacks.last_checkpoint import LAST

ATTEMPTS_FOLDER = "attempts"
# Processes that may die over a job, without a step forward in between, before it is given up.
JOB_DEATHS = 3


def part_of(job: Job) -> str:
    """What one process holds to do a job: a baseline's folds and references share features, so one does them all."""
    return method_folder(baseline_of(job.method)) if is_baseline(job.method) else str(job.path.relative_to("jobs"))


@dataclass
class Attempts:
    """Earlier attempts at a job, in a file that is there only where one went wrong.

    Args:
        deaths: Processes that died over the job since its last state was written.
        state: Time of that last state, in nanoseconds; 0 for none.
        alone: Whether the next attempt comes after the other jobs and has no other beside it.
        memory: What the first attempt said when memory was exhausted.
        error: The error, no user's mistake, that ended an attempt.
        study: Process id of the study that `error` ended a worker of; another one tries again.
    """

    path: Path
    deaths: int = 0
    state: int = 0
    alone: bool = False
    memory: str = ""
    error: str = ""
    study: int = 0

    @classmethod
    def of(cls, study_folder: Path, job: Job) -> "Attempts":
        path = study_folder / ATTEMPTS_FOLDER / f"{part_of(job)}.json"
        content = read_json(path) or {}
        names = {each.name for each in fields(cls)} - {"path"}
        return cls(path, **{name: value for name, value in content.items() if name in names})

    def given_up(self, study: int) -> bool:
        """Whether this study tries no more."""
        return self.deaths >= JOB_DEATHS or (bool(self.error) and self.study == study)

    @property
    def reasons(self) -> list[str]:
        """Why there was more than one attempt, for the result."""
        died = [f"{self.deaths} process{'es' * (self.deaths > 1)} died over it"] if self.deaths else []
        return [*died, *filter(None, (self.memory, self.error))]

    def note_death(self, folder: Path, among_others: bool) -> None:
        """A process died over the job; `folder` is the job's, `among_others` whether others worked beside it."""
        last = folder / LAST
        state = last.stat().st_mtime_ns if last.exists() else 0
        self.deaths = self.deaths + 1 if state == self.state else 1
        self.state = state
        # A study of one process may have been killed on purpose; the second time the job must not keep others waiting.
        self.alone = among_others or self.deaths > 1
        self._write()

    def note_memory(self, reason: str) -> None:
        self.memory, self.alone = reason, True
        self._write()

    def note_error(self, error: Exception, study: int) -> None:
        self.error, self.study, self.alone = f"{type(error).__name__}: {error}".splitlines()[0], study, True
        self._write()

    def forget(self) -> None:
        """The job is done."""
        self.path.unlink(missing_ok=True)

    def remedy(self, job: Job) -> str:
        """One line that names the job, what ended it and what helps."""
        if self.deaths >= JOB_DEATHS:
            return (
                f"{job}: {self.deaths} processes died over it, the last with no other job beside it (is there enough "
                f"memory?); with more of it, delete {self.path} and resume, or run the study without this method"
            )
        return f"{job} ended with an error that is printed above ({self.error}); mend it and resume"

    def _write(self) -> None:
        content: dict[str, Any] = asdict(self)
        del content["path"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, content)
