"""Worker processes of this machine that share a study's jobs, looked after by the process that started them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from levelfield.errors import UserError
from levelfield.runtime.processes import LOOK_SECONDS, SIDE_BY_SIDE, end
from levelfield.storage.lock import left_by_the_dead
from levelfield.study.definition.spec import StudySpec
from levelfield.study.jobs.job import Job
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# A worker that ends this often without having begun a job is not started again.
DEATHS = 3
# Exit code of a worker whose job ended with an error; the others leave that job alone and do the rest.
JOB_FAILED = 3


@contextmanager
def started(
    record: StudyRecord, environments: Sequence[dict[str, str]], *what: str, study: int | None = None, first: int = 0
) -> Iterator["list[Worker]"]:
    """Workers that wait to begin, one in each environment; they are ended in the end.

    Args:
        what: `worker_process` is told: the seconds between last states, or `test` and the opening's number.
        study: Process id of the study where that is another process than this one.
        first: Number of the first worker.
    """
    words = [str(os.getpid()), str(study or os.getpid()), str(record.folder), *what]
    pool = [Worker(words, environment, number) for number, environment in enumerate(environments, first)]
    try:
        yield pool
    finally:
        end([worker.process for worker in pool])


def share_jobs(pool: "Sequence[Worker]", record: StudyRecord, progress: StudyProgress) -> None:
    """Let the workers do the jobs until none is left; one that dies or fails is replaced.

    Raises:
        UserError: what a worker could not go on for, or workers that die before they begin a job.
        KeyboardInterrupt: Ctrl-C; the workers are interrupted too, and killed by a second one.
    """
    progress.start(f"{len(pool)} workers")
    for worker in pool:
        worker.begin()
    while record.state.to_do:
        for worker in pool:
            progress.note_finished(record.learn(worker.told()))
        for worker in pool:
            worker.look_after(record, progress)
        if record.state.to_do and all(worker.given_up for worker in pool):
            raise UserError(
                f"no worker could begin a job ({DEATHS} times each): what they printed above says why; if it is "
                "nothing, there may be too little memory for so many: lower --executor.workers and resume"
            )
        time.sleep(LOOK_SECONDS)
    end([worker.process for worker in pool])


class Worker:
    """One process of the pool, in a session of its own so that Ctrl-C reaches this process alone."""

    def __init__(self, words: list[str], environment: dict[str, str], number: int) -> None:
        self.number = number
        self.deaths = 0
        self.given_up = False
        self._command = [sys.executable, "-m", "levelfield.study.execution.worker_process", *words]
        self._environment = environment
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment, start_new_session=True
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._unread = b""
        self._mistake: str | None = None

    def begin(self) -> None:
        """Tell it that `study.yaml` is there."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: `look_after` sees to that
            self.process.stdin.write(b"begin\n")
            self.process.stdin.flush()

    def told(self) -> list[Job]:
        """The jobs that it has said to be done since the last time."""
        return [Job(**words["done"]) for words in self._words() if "done" in words]

    def _words(self) -> list[dict[str, Any]]:
        """The lines that it has written since the last time, and not the beginning of one."""
        assert self.process.stdout is not None
        *lines, self._unread = (self._unread + (self.process.stdout.read() or b"")).split(b"\n")
        words = [json.loads(line) for line in lines]
        self._mistake = next((each["error"] for each in words if "error" in each), self._mistake)
        return words

    def look_after(self, record: StudyRecord, progress: StudyProgress) -> None:
        """Raise what it ended with, or start it again if something killed it."""
        code = self.process.poll()
        if code is None or self.given_up or (code == 0 and not record.state.to_do):
            return
        self._words()
        if self._mistake is not None:  # it may have said so long before it ended
            raise UserError(self._mistake)
        progress.note_finished(record.refresh())  # what it did, and what it can no longer tell
        if code == 0:
            return
        how = "ended with an error, which it printed above" if code > 0 else f"died (signal {-code})"
        in_a_job = code == JOB_FAILED or any(
            left["process"] == self.process.pid for left in left_by_the_dead(record.folder)
        )
        self.deaths = 0 if in_a_job else self.deaths + 1
        if self.deaths == DEATHS:
            self.given_up = True
            progress.line(f"worker {self.number} {how}, {DEATHS} times without a job; the others go on without it")
            return
        progress.line(f"worker {self.number} {how}; another takes its place")
        self.start()
        self.begin()


def environment(spec: StudySpec, workers: int) -> dict[str, str]:
    """What a worker runs in: this process's environment with the study's threads and its share of the cores."""
    threads = {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**os.environ, **threads, SIDE_BY_SIDE: str(workers)}


def devices_each(spec: StudySpec) -> int:
    """How many devices a job has."""
    return max(config["trainer"].get("devices", 1) for config in spec.methods.values())


def on_cpu(spec: StudySpec) -> bool:
    """Whether all jobs say that they train on the CPU."""
    return all(config["trainer"].get("accelerator") == "cpu" for config in spec.methods.values())
