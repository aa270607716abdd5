"""An array of workers in SLURM's queue that share a study's jobs; submitit submits it and puts it back."""

import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from levelfield.errors import UserError
from levelfield.study.execution.executor import Jobs, Submitted, options_in_words
from levelfield.study.execution.share import Died, Handed, Share, follow
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# Of the study's: what submitit sends to the workers, and what they print.
FOLDER = "slurm"
# How often a worker may meet its time limit; what it does is in the study's folder, so this bounds nothing but mishaps.
REQUEUES = 1000
# Of SLURM's own variables: where its configuration is.
KEPT = ("SLURM_CONF",)


@dataclass(frozen=True)
class Slurm:
    """An array whose every element is a worker, requeued when it is preempted and before its time ends.

    The study's folder, the working directory and the data must be there on all nodes, and SLURM must requeue jobs
    (`JobRequeue=1`, its default).

    Args:
        workers: Elements of the array.
        wait: Whether to wait for the array, show what it does and open the test classes in the end.
        partition: Of the cluster.
        time: Minutes of an element, after which it is requeued.
        cpus: Of an element; by default as many as a job has threads.
        gpus: Of an element.
        mem: Of an element, in GB.
        sbatch: Further options of `sbatch`, as `{account: lab, qos: low}`.
        cluster: `local` has submitit start the elements on this machine, without a queue, to try it.
        checkpoint_seconds: How often a long job's last state is written, between two steps or at an epoch's end.

    Raises:
        UserError: a number that is too small.
    """

    workers: int = 4
    wait: bool = True
    partition: str | None = None
    time: int = 240
    cpus: int | None = None
    gpus: int = 0
    mem: float | None = None
    sbatch: Mapping[str, Any] = field(default_factory=dict)
    cluster: Literal["slurm", "local"] = "slurm"
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        least = {"workers": 1, "time": 5, "cpus": 1, "gpus": 0, "mem": 0, "checkpoint_seconds": 0}
        for key, smallest in least.items():
            given = getattr(self, key)
            if given is not None and not smallest <= given < math.inf:
                raise UserError(f"--executor.{key} must be at least {smallest}, not {given}")

    def words(self) -> list[str]:
        return ["--executor", "slurm", *options_in_words(self)]

    def side_by_side(self, record: StudyRecord) -> int:
        return self.workers

    @contextmanager
    def ready(self, record: StudyRecord) -> Iterator[Jobs]:
        """Nothing is submitted yet.

        Raises:
            UserError: submitit is not installed, or this is no machine that submits to SLURM.
        """
        _submitit()
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "--executor slurm: there is no sbatch here; start the study where jobs are submitted, or try it with "
                "--executor.cluster local"
            )
        yield self._do_jobs

    def _do_jobs(self, record: StudyRecord, progress: StudyProgress) -> None:
        if not record.state.to_do:
            return
        what, logs = str(self.checkpoint_seconds), record.folder / FOLDER
        progress.start(f"{self.workers} workers")
        if not self.wait:
            array = self._submit(record, self.workers, what)[0].job.job_id.split("_")[0]
            raise Submitted(
                f"{self.workers} workers are submitted as job {array}, and write to {logs}; levelfield study status "
                f"{record.folder} says how far they are, and when they are done levelfield study resume "
                f"{record.folder} opens the test classes"
            )
        with self._submitted(record, self.workers, what) as jobs:
            progress.line(f"{self.workers} workers are submitted; they write to {logs}")
            try:
                follow(jobs, lambda: self._submit(record, 1, what)[0], record, progress)
            except UserError as error:
                raise UserError(f"{error} (the workers wrote to {logs})") from error

    @contextmanager
    def testing(self, record: StudyRecord, opening: int) -> Iterator[None]:
        """Elements of another array score runs beside this process, once they have their turn."""
        with self._submitted(record, self.workers - 1 if self.wait else 0, "test", str(opening)):
            yield

    @contextmanager
    def _submitted(self, record: StudyRecord, workers: int, *what: str) -> Iterator[list[Handed]]:
        """An array, which is cancelled in the end."""
        jobs: list[Any] = []
        try:
            jobs += self._submit(record, workers, *what) if workers else []
            yield jobs
        finally:
            running = [each.job for each in jobs if not each.job.done()]
            if running and self.cluster == "slurm":  # submitit lets SIGTERM pass, as a preemption's: this ends them
                names = [job.job_id for job in running]
                subprocess.run(["scancel", "--signal=INT", *names], capture_output=True)
                subprocess.run(["scancel", *names], capture_output=True)
            for job in running if self.cluster == "local" else ():
                job.cancel()
                job.wait()

    def _submit(self, record: StudyRecord, workers: int, *what: str) -> "list[_Element]":
        """Submit some workers.

        Raises:
            UserError: what `sbatch` says against it.
        """
        submitit = _submitit()
        cpus = self.cpus or record.spec.threads
        asked = {
            "name": record.spec.name,
            "timeout_min": self.time,
            "cpus_per_task": cpus,
            "gpus_per_node": self.gpus,
            "mem_gb": self.mem,
            "slurm_partition": self.partition,
            "slurm_additional_parameters": dict(self.sbatch) or None,
        }
        try:
            executor = submitit.AutoExecutor(
                record.folder / FOLDER, cluster=self.cluster, **{f"{self.cluster}_max_num_timeout": REQUEUES}
            )
            executor.update_parameters(**{key: value for key, value in asked.items() if value})
            shares = [_Requeued(record.folder, what, cpus) for _ in range(workers)]
            kept = {name: os.environ[name] for name in KEPT if name in os.environ}
            # Where the study is a job itself, the array must not inherit what that one was given.
            with submitit.helpers.clean_env(), submitit.helpers.environment_variables(**kept), executor.batch():
                jobs = [executor.submit(share) for share in shares]
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError, RuntimeError) as error:
            raise UserError(f"--executor slurm: {' '.join(str(error).split())[-300:]}") from error
        return [_Element(job) for job in jobs]


class _Requeued(Share):
    """A share as submitit wants it: it says how it goes on when SLURM takes its node away or its time ends."""

    def checkpoint(self) -> Any:
        self.stop()
        return _submitit().helpers.DelayedSubmission(replace(self))


class _Element:
    """One worker of an array."""

    def __init__(self, job: Any) -> None:
        self.job = job

    def said(self) -> str | None:
        if not self.job.done():
            return None
        errors = _submitit().core.utils
        try:
            return self.job.result()
        except (errors.UncompletedJobError, errors.FailedJobError) as error:
            raise Died(f"job {self.job.job_id} ended ({self.job.state}), see {Path(self.job.paths.stderr)}") from error


def _submitit() -> ModuleType:
    """submitit, where it is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import submitit
    except ImportError:
        raise UserError("--executor slurm: submitit is not installed: pip install 'levelfield[slurm]'") from None
    return submitit
