"""Does the jobs of a study one after the other, sharing them with any other process that works on the same folder."""

import gc
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from levelfield.errors import OutOfMemory, TrainingFailed, UserError
from levelfield.runtime.processes import is_running
from levelfield.storage.lock import Lock, is_held, running
from levelfield.study.definition.spec import is_baseline
from levelfield.study.environment import SeenInJobs, check_environment
from levelfield.study.execution.baseline import TrunkFeatures, fit_baseline
from levelfield.study.execution.group import GroupDied, train_in_group
from levelfield.study.execution.train import train
from levelfield.study.jobs.attempts import Attempts, part_of
from levelfield.study.jobs.job import Job, job_config
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# Who holds this part does a job that must have no other beside it.
ALONE = "alone"
# Between two looks at whether a job that others do is done; each looks at those jobs alone.
WAIT_SECONDS = 0.1
# A collection of garbage that takes longer has walked over what a process has imported and keeps.
LONG_COLLECTION_SECONDS = 0.02


class JobError(Exception):
    """An error, no user's mistake, ended a job; the process may be the worse for it."""


def work(
    record: StudyRecord,
    progress: StudyProgress,
    checkpoint_seconds: float,
    keeper: int | None = None,
    study: int | None = None,
) -> None:
    """Do jobs until none is left, waiting for those that others do; a dead process' jobs are done here.

    A job that memory did not suffice for, or that processes died over, comes after the others and has none beside it.

    Args:
        keeper: The process of this host that started this one, where it is a worker of a pool.
        study: Process id of the study, which may run on another host; `keeper` where it is the same.

    Raises:
        UserError: a setting, the data or a result is not usable, or jobs that nothing helps are all that is left.
        JobError: an error ended a job of a pool's worker; it is noted, so that the others leave the job alone.
    """
    worker = _Worker(record, progress, checkpoint_seconds, keeper, study)
    try:
        while record.state.to_do:
            if not worker.do_next():
                worker.refuse_to_wait_in_vain()
                time.sleep(WAIT_SECONDS)
    finally:
        gc.unfreeze()


class _Worker:
    """One process that does jobs; the arguments are those of `work`."""

    def __init__(
        self,
        record: StudyRecord,
        progress: StudyProgress,
        checkpoint_seconds: float,
        keeper: int | None,
        study: int | None = None,
    ) -> None:
        self.record, self.state, self.folder = record, record.state, record.folder
        self.progress = progress
        self.checkpoint_seconds = checkpoint_seconds
        self.keeper = keeper
        self.study = study or keeper or os.getpid()
        self.features = TrunkFeatures()
        self.seen = SeenInJobs(record)
        self.alone = Lock(self.folder, ALONE, ALONE, keeper)
        self._locks: dict[str, Lock] = {}

    def do_next(self) -> bool:
        """Do the first job that is ready and that nobody holds, or learn that it is done; False if there is none.

        What others have done is found here, job by job in their order, and nowhere else is looked for it.
        """
        later = []
        for job in self.state.ready():
            attempts = Attempts.of(self.folder, job)
            if attempts.alone:
                later.append((job, attempts))
            elif self._attempt(job):
                return True
        return any(self._attempt_alone(job) for job, attempts in later if not attempts.given_up(self.study))

    def refuse_to_wait_in_vain(self) -> None:
        """Raise if all that is left are jobs that are given up, and what waits for them."""
        ready = list(self.state.ready())
        lost = [(job, attempts) for job in ready if (attempts := Attempts.of(self.folder, job)).given_up(self.study)]
        if lost and len(lost) == len(ready) and not self._others_work():
            job, attempts = lost[0]
            more = f"; so for {len(lost) - 1} more: {', '.join(str(job) for job, _ in lost[1:])}" if lost[1:] else ""
            raise UserError(f"{attempts.remedy(job)}; the results of the other jobs are kept{more}")

    def _attempt(self, job: Job) -> bool:
        """Do a job unless another process does it, works alone, or has died over it; whether the job is done."""
        lock = self._lock(job)
        if not lock.acquire():
            return False
        try:
            if done := self.record.learn([job]):
                self.progress.note_finished(done)
                return True
            if lock.predecessor is not None and self._died_over_it(lock.predecessor):
                lock.predecessor = None
                Attempts.of(self.folder, job).note_death(self.folder / job.path, among_others=self.keeper is not None)
                return False
            if not self.alone.held and is_held(self.folder, ALONE):
                return False
            return self._do(job)
        finally:
            lock.release()

    def _attempt_alone(self, job: Job) -> bool:
        """The same with no other job beside it."""
        if not self.alone.acquire():
            return False
        try:
            while self._others_work():
                time.sleep(WAIT_SECONDS)
            return self._attempt(job)
        finally:
            self.alone.release()

    def _others_work(self) -> bool:
        parts = {part_of(job) for job in self.state.jobs}
        own = socket.gethostname(), os.getpid()
        return any(
            entry["part"] in parts and (entry["host"], entry["process"]) != own for entry in running(self.folder)
        )

    def _died_over_it(self, predecessor: dict[str, Any]) -> bool:
        """Whether a process died by itself, and not with a whole study that was ended."""
        keeper = predecessor["keeper"]
        return keeper is None or (predecessor["host"] == socket.gethostname() and is_running(keeper))

    def _lock(self, job: Job) -> Lock:
        part = part_of(job)
        lock = self._locks.setdefault(part, Lock(self.folder, part, str(job), self.keeper))
        lock.title = str(job)
        return lock

    def _do(self, job: Job) -> bool:
        attempts = Attempts.of(self.folder, job)
        self.progress.start(str(job))
        try:
            result = do_job(
                self.record, job, self.features, self.seen, self.progress, self.checkpoint_seconds, attempts
            )
        except OutOfMemory as error:
            attempts.note_memory(str(error))
            self.progress.line(f"{job}: {error}; it is tried again with no other job beside it")
        except GroupDied as error:
            attempts.note_death(self.folder / job.path, among_others=True)
            self.progress.line(f"{job}: {error}; it is tried again with no other job beside it")
        except UserError:
            raise
        except Exception as error:
            if self.keeper is None:
                raise
            attempts.note_error(error, self.study)
            raise JobError(str(job)) from error
        else:
            attempts.forget()
            self.state.results[job] = result
            self.progress.note_finished([job])
            return True
        _collect_garbage()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return False


def do_job(
    record: StudyRecord,
    job: Job,
    features: TrunkFeatures,
    seen: SeenInJobs,
    progress: StudyProgress,
    checkpoint_seconds: float,
    attempts: Attempts,
) -> dict:
    """Do one job and write its result; a training that cannot be finished is a result too.

    Raises:
        OutOfMemory: memory is exhausted, for the first time in this job.
        GroupDied: the processes that trained together were killed.
    """
    parameters = record.state.parameters(job)
    started = time.monotonic()
    try:
        if is_baseline(job.method):
            found = fit_baseline(record, job, features, progress.advance)
        else:
            config = job_config(record.spec, job, parameters)
            if config["trainer"]["devices"] > 1:
                found = train_in_group(record.folder, job, config, checkpoint_seconds)
            else:
                shown = progress.advance if progress.shows_steps else None
                found = train(record, job, config, shown, checkpoint_seconds)
    except OutOfMemory as error:
        if not attempts.memory:
            raise
        found = {"failure": f"{error}; twice, the second time with no other job beside it"}
    except TrainingFailed as error:
        found = {"failure": str(error)}
    else:
        record.check_data(found["data"])
        check_environment(record, [(job.method, found["provenance"])], there=seen.values())
    found = {"seconds": time.monotonic() - started, **found}
    if attempts.reasons:
        found["earlier_attempts"] = attempts.reasons
    _collect_garbage()
    return record.finish_job(job, parameters, found)


def _collect_garbage() -> None:
    """A Trainer's objects refer to each other: without this a study grows by megabytes a job.

    What survives a long collection, the modules of a dozen libraries above all, is passed over by the next ones.
    """
    started = time.perf_counter()
    gc.collect()
    if time.perf_counter() - started > LONG_COLLECTION_SECONDS:
        gc.freeze()


@contextmanager
def fixed_threads(number: int) -> Iterator[None]:
    """Fix the number of threads: it changes the last bits of sums, and with them the weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
