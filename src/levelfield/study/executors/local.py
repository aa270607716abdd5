"""Slots on this machine: one process each, which stays alive."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Literal

from loky import ProcessPoolExecutor

from levelfield.core.errors import refuse_below
from levelfield.core.processes import (
    SIDE_BY_SIDE,
    cores_here,
    end_with_parent,
    forget_launcher,
    free_memory,
    keep_freed_memory,
    quick_imports,
)
from levelfield.study.executors import devices_of_a_job, on_cpu
from levelfield.study.jobs import study_jobs
from levelfield.study.spec import StudySpec
from levelfield.study.workers import Slots

# For `auto`: jobs per worker on a CPU, as a start takes as long as several short ones; memory per worker, twice what a
# training on features takes.
JOBS_EACH, BYTES_EACH = 4, 2 << 30
# Without it `python -m` and `python -c` search the working directory first.
SAFE_PATH = "PYTHONSAFEPATH"
OF_A_WORKER = {
    SAFE_PATH: "1",
    "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18",  # otherwise loky replaces a worker that has grown by 300 MB
}


class Local(Slots):
    """Processes of this machine.

    Args:
        workers: Number of processes, which take the visible GPUs in turn, each as many as a job needs; 1 means this
            process. `auto` takes one per GPU, as far as cores, memory and jobs allow; on a CPU as many as the cores
            have room for the threads of a job.

    Raises:
        UserError: a number that is not positive.
    """

    def __init__(self, spec: StudySpec, workers: int | Literal["auto"] = "auto") -> None:
        self._devices = [] if on_cpu(spec) else _groups(devices_of_a_job(spec))
        self.number = _auto(spec, len(self._devices)) if workers == "auto" else workers
        refuse_below(1, "executor", workers=self.number)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(spec.threads))
        self._environment = {**threads, SIDE_BY_SIDE: str(self.number), **OF_A_WORKER}
        self._pools: dict[int, ProcessPoolExecutor] = {}

    def ready(self, slot: int) -> bool:
        if slot not in self._pools:
            environment = dict(self._environment)
            if self._devices:
                environment["CUDA_VISIBLE_DEVICES"] = self._devices[slot % len(self._devices)]
            os.environ[SAFE_PATH] = "1"  # for the helper processes of loky, which inherit it
            pool = ProcessPoolExecutor(1, initializer=_begin, initargs=(os.getpid(),), env=environment)
            pool.submit(int)  # starts the process, which imports modules while the study checks its rows
            self._pools[slot] = pool
        return True

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        return self._pools[slot].submit(function, *arguments)

    def drop(self, slot: int) -> None:
        self._pools.pop(slot).shutdown(wait=False, kill_workers=True)

    def stop(self) -> None:
        for slot in list(self._pools):
            self.drop(slot)


def _begin(parent: int) -> None:
    """Prepare a worker before its first unit."""
    end_with_parent(parent)
    os.setsid()  # Linux divides a busy machine by session: in its own session a worker gets a full share
    # Otherwise loader processes would use loky's start method, and fail.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    os.dup2(2, 1)  # standard output may be JSON: prints of a job go to standard error
    begin_worker()


def begin_worker() -> None:
    """Prepare a process on any machine, and import everything that a unit needs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the study's process, which ends this one
    forget_launcher()  # whose variables a node's process has, too
    keep_freed_memory()
    quick_imports()
    import_module("levelfield.study.seal")


def _auto(spec: StudySpec, on_devices: int) -> int:
    """The number of workers that cores, memory, devices and jobs allow."""
    jobs, cores, memory = len(study_jobs(spec)), cores_here(), free_memory() // BYTES_EACH
    if on_devices:
        return max(min(on_devices, jobs, cores, memory), 1)
    return max(min(jobs // JOBS_EACH, cores // spec.threads, memory), 1)


def _groups(each: int) -> list[str]:
    """The visible GPUs of each slot, as many as a job needs, as in `CUDA_VISIBLE_DEVICES`."""
    import torch

    number = torch.cuda.device_count()  # as far as the list goes; it starts nothing on a GPU
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = listed.split(",")[:number] if listed else [str(device) for device in range(number)]
    return [",".join(devices[first : first + each]) for first in range(0, len(devices) - each + 1, each)]
