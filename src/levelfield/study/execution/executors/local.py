"""Processes of this machine that share a study's jobs, each with its device or its part of one."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Literal

from levelfield.errors import UserError
from levelfield.study.execution.executor import Jobs, options_in_words
from levelfield.study.execution.pool import Worker, devices_each, environment, on_cpu, share_jobs, started
from levelfield.study.jobs.job import study_jobs
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# `auto`: a worker has as many jobs at least, for to start one takes as long as several short ones, ...
JOBS_EACH = 32
# ... and as much memory, twice of what a training on features takes.
BYTES_EACH = 2 << 30
# What of `CUDA_VISIBLE_DEVICES` hides all devices that follow.
NO_DEVICE = ("-1", "NoDevFiles")


@dataclass(frozen=True)
class Local:
    """Processes on this machine; one is this process.

    Args:
        workers: How many. `auto` is one for each core where a study's jobs have one thread, or for each of the
            GPUs that they use, times `jobs_per_device`, as far as cores, memory and jobs go round; one where a job
            has several threads.
        devices: GPUs that the workers take in turn, each as many as a job has; None takes all that CUDA shows.
        jobs_per_device: How many workers `auto` lets share a GPU.
        checkpoint_seconds: How often a long job's last state is written, between two steps or at an epoch's end.

    Raises:
        UserError: a number that is too small.
    """

    workers: int | Literal["auto"] = "auto"
    devices: int | Sequence[int] | None = None
    jobs_per_device: int = 1
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        for key, smallest in (("workers", 1), ("jobs_per_device", 1), ("checkpoint_seconds", 0)):
            given = getattr(self, key)
            if given != "auto" and not smallest <= given < math.inf:
                raise UserError(f"--executor.{key} must be at least {smallest}, not {given}")

    def words(self) -> list[str]:
        return [word for word in options_in_words(self) if word != "--executor.workers=1"]

    def side_by_side(self, record: StudyRecord) -> int:
        if self.workers != "auto":
            return self.workers
        if record.spec.threads > 1:
            return 1
        most = [os.cpu_count() or 1, len(study_jobs(record.spec)) // JOBS_EACH]
        if hasattr(os, "sched_getaffinity"):
            most.append(len(os.sched_getaffinity(0)))
        if not on_cpu(record.spec) and (devices := self.visible()):
            most.append(len(devices) // devices_each(record.spec) * self.jobs_per_device)
        with suppress(OSError, StopIteration):  # a system that does not say
            lines = Path("/proc/meminfo").read_text().splitlines()
            available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
            most.append(available * 1024 // BYTES_EACH)
        return max(min(most), 1)

    @contextmanager
    def ready(self, record: StudyRecord) -> Iterator[Jobs]:
        """What the workers import takes as long as the study's first look: they are started before there is work."""
        workers = self.side_by_side(record)
        numbers = range(workers) if workers > 1 else range(0)
        with self._only_devices(), self._started(record, numbers, str(self.checkpoint_seconds)) as pool:
            yield partial(share_jobs, pool) if pool else self._work_here

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
            if torch.cuda.is_initialized():
                pass  # with these devices, for good: another study may begin here with the same
            elif before is None:
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

    def _started(self, record: StudyRecord, numbers: range, *what: str) -> AbstractContextManager[list[Worker]]:
        """Workers that wait to begin, each with its devices."""
        devices, each = self.visible() if numbers else [], devices_each(record.spec)
        shared = environment(record.spec, numbers.stop)
        environments = [{**shared, **devices_of(number, devices, each)} for number in numbers]
        return started(record, environments, *what, first=numbers.start)

    def visible(self) -> list[str]:
        """What `CUDA_VISIBLE_DEVICES` is for the workers in turn; empty without a GPU."""
        if self.devices is not None:
            return [str(device) for device in (self.devices if isinstance(self.devices, Sequence) else [self.devices])]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return [device for device in takewhile(lambda each: each not in NO_DEVICE, visible.split(",")) if device]
        import torch

        return [str(device) for device in range(torch.cuda.device_count())]


def devices_of(worker: int, devices: Sequence[str], each: int) -> dict[str, str]:
    """The devices that a worker sees, by its number: they are dealt in turn, as many at once as a job has."""
    groups = [devices[first : first + each] for first in range(0, len(devices) - each + 1, each)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(groups[worker % len(groups)])} if groups else {}
