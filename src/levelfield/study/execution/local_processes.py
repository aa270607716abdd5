"""A pool of local worker processes that share a study's jobs, each with its device."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from levelfield.errors import UserError
from levelfield.runtime.processes import LOOK_SECONDS, SIDE_BY_SIDE, end
from levelfield.storage.lock import left_by_the_dead
from levelfield.study.definition.spec import StudySpec
from levelfield.study.execution.executor import Jobs
from levelfield.study.jobs.job import Job, study_jobs
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# `auto`: a worker has as many jobs at least, for to start one takes as long as several short ones, ...
JOBS_EACH = 32
# ... and as much memory, twice of what a training on features takes.
BYTES_EACH = 2 << 30
# A worker that ends this often without having begun a job is not started again.
DEATHS = 3
# Exit code of a worker whose job ended with an error; the others leave that job alone and do the rest.
JOB_FAILED = 3


@dataclass(frozen=True)
class LocalProcesses:
    """Processes on this machine; one is this process.

    Args:
        workers: How many. `auto` is one for each core where a study's jobs have one thread, or for each of the
            GPUs that they use, as far as memory and jobs go round; one where a job has several threads.
        devices: GPUs that the workers take in turn, each as many as a job has; None takes all that CUDA shows.
        checkpoint_seconds: How often a long job's last state is written, at an epoch's end.

    Raises:
        UserError: a number that is too small.
    """

    workers: int | Literal["auto"] = "auto"
    devices: int | Sequence[int] | None = None
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        for key, smallest in (("workers", 1), ("checkpoint_seconds", 0)):
            given = getattr(self, key)
            if given != "auto" and not smallest <= given < math.inf:
                raise UserError(f"--executor.{key} must be at least {smallest}, not {given}")

    def words(self) -> list[str]:
        return [] if self.workers in ("auto", 1) else [f"--executor.workers={self.workers}"]

    def side_by_side(self, record: StudyRecord) -> int:
        if self.workers != "auto":
            return self.workers
        if record.spec.threads > 1:
            return 1
        most = [os.cpu_count() or 1, len(study_jobs(record.spec)) // JOBS_EACH]
        if hasattr(os, "sched_getaffinity"):
            most.append(len(os.sched_getaffinity(0)))
        on_cpu = all(config["trainer"].get("accelerator") == "cpu" for config in record.spec.methods.values())
        if not on_cpu and (devices := self.visible()):
            most.append(len(devices) // _devices_each(record.spec))
        with suppress(OSError, StopIteration):  # a system that does not say
            lines = Path("/proc/meminfo").read_text().splitlines()
            available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
            most.append(available * 1024 // BYTES_EACH)
        return max(min(most), 1)

    @contextmanager
    def ready(self, record: StudyRecord) -> Iterator[Jobs]:
        """What the workers import takes as long as the study's first look: they are started before there is work."""
        workers = self.side_by_side(record)
        numbers = range(workers) if workers > 1 else ()
        with self._only_devices(), self._started(record, numbers, str(self.checkpoint_seconds)) as pool:
            yield partial(_share, pool) if pool else self._work_here

    def _work_here(self, record: StudyRecord, progress: StudyProgress) -> None:
        from levelfield.study.execution.worker import work  # torch is not needed to say that an option is misspelt

        work(record, progress, self.checkpoint_seconds)

    @contextmanager
    def _only_devices(self) -> Iterator[None]:
        """This process, too, sees no other GPUs than the executor names.

        Raises:
            UserError: CUDA has begun here, and takes no other choice.
        """
        if self.devices is None:
            yield
            return
        import torch

        before, chosen = os.environ.get("CUDA_VISIBLE_DEVICES"), ",".join(self.visible())
        if torch.cuda.is_initialized() and before != chosen:
            raise UserError(
                "--executor.devices: this process uses CUDA already; set CUDA_VISIBLE_DEVICES before it starts"
            )
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen
        try:
            yield
        finally:
            if before is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before

    @contextmanager
    def testing(self, record: StudyRecord, opening: int) -> Iterator[None]:
        """Let as many processes, this one among them, score the runs of an opening of the test classes.

        One that dies or fails leaves its run to the others; this process meets the same mistake and reports it.
        """
        with self._started(record, range(1, self.side_by_side(record)), "test", str(opening)) as others:
            for worker in others:
                worker.begin()
            yield

    @contextmanager
    def _started(self, record: StudyRecord, numbers: Sequence[int], *what: str) -> Iterator["list[_Worker]"]:
        """Workers that wait to begin, each in its environment; they are ended in the end."""
        devices = self.visible() if numbers else []
        words = [str(os.getpid()), str(record.folder), *what]
        pool = [
            _Worker(words, _environment(record.spec, devices, number, numbers[-1] + 1), number) for number in numbers
        ]
        try:
            yield pool
        finally:
            end([worker.process for worker in pool])

    def visible(self) -> list[str]:
        """What `CUDA_VISIBLE_DEVICES` is for the workers in turn; empty without a GPU."""
        if self.devices is not None:
            return [str(device) for device in (self.devices if isinstance(self.devices, Sequence) else [self.devices])]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return [device for device in visible.split(",") if device]
        import torch

        return [str(device) for device in range(torch.cuda.device_count())]


def _share(pool: "Sequence[_Worker]", record: StudyRecord, progress: StudyProgress) -> None:
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


class _Worker:
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
        return [json.loads(line) for line in lines]

    def look_after(self, record: StudyRecord, progress: StudyProgress) -> None:
        """Raise what it ended with, or start it again if something killed it."""
        code = self.process.poll()
        if code is None or self.given_up or (code == 0 and not record.state.to_do):
            return
        for words in self._words():
            if "error" in words:
                raise UserError(words["error"])
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


def _environment(spec: StudySpec, devices: Sequence[str], number: int, workers: int) -> dict[str, str]:
    """What a worker runs in: the study's threads and, in turn, as many devices as a job has."""
    threads = {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **threads, SIDE_BY_SIDE: str(workers)}
    each = _devices_each(spec)
    groups = [devices[first : first + each] for first in range(0, len(devices) - each + 1, each)]
    if groups:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(groups[number % len(groups)])
    return environment


def _devices_each(spec: StudySpec) -> int:
    """How many devices a job has."""
    return max(config["trainer"].get("devices", 1) for config in spec.methods.values())
