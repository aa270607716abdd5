"""Tasks of a Ray cluster that share a study's jobs, each with its share of a node."""

import math
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from levelfield.errors import UserError
from levelfield.study.execution.executor import Jobs, options_in_words
from levelfield.study.execution.pool import devices_each, on_cpu
from levelfield.study.execution.share import Died, Handed, Share, follow
from levelfield.study.jobs.job import study_jobs
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# A cluster of this machine alone, which ends with the study.
ALONE = "local"
# The least that Ray takes: a share and what it says are all that goes through its store.
STORE_BYTES = 80 << 20
# What tasks have to write their last state when they are cancelled.
END_SECONDS = 25


@dataclass(frozen=True)
class Ray:
    """A Ray task a worker, on whatever node has room for it; where a node dies, its tasks go to another.

    The study's folder, the working directory and the data must be there on all nodes.

    Args:
        workers: How many tasks; `auto` is as many as there is room for when the study begins, one a job at most.
        address: The cluster's, as `ray.init` takes it; by default what `RAY_ADDRESS` says, or this machine alone.
        cpus: Share of a task; by default as many as a job has threads.
        gpus: Share of a task, 0.25 for four on a GPU; by default as many as a job has devices, where the cluster has
            GPUs and the jobs do not say that they train on the CPU.
        checkpoint_seconds: How often a long job's last state is written, between two steps or at an epoch's end.

    Raises:
        UserError: a number that is too small.
    """

    workers: int | Literal["auto"] = "auto"
    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        for key, smallest in (("workers", 1), ("cpus", 0), ("gpus", 0), ("checkpoint_seconds", 0)):
            given = getattr(self, key)
            if given not in ("auto", None) and not smallest <= given < math.inf:
                raise UserError(f"--executor.{key} must be at least {smallest}, not {given}")

    def words(self) -> list[str]:
        return ["--executor", "ray", *options_in_words(self)]

    def side_by_side(self, record: StudyRecord) -> int:
        if self.workers != "auto":
            return self.workers
        return max(1, min(sum(self._room(record).values()), len(study_jobs(record.spec))))

    @contextmanager
    def ready(self, record: StudyRecord) -> Iterator[Jobs]:
        """Connect to the cluster, or start one.

        Raises:
            UserError: Ray is not installed, no cluster answers, or this machine is too small for a task.
        """
        ray = _ray()
        address = self.address or os.environ.get("RAY_ADDRESS") or ALONE
        own = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == ALONE else {}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())[:200]
            raise UserError(f"--executor.address {address}: no Ray cluster to work with ({said})") from error
        finally:
            with suppress(ValueError):  # not the main thread, whose handler Ray replaces
                signal.signal(signal.SIGTERM, handler)
        try:
            if address == ALONE and not any(self._room(record).values()):
                raise UserError(f"a task of {self._share_in_words(record)} is more than this machine has")
            yield self._do_jobs
        finally:
            ray.shutdown()

    def _do_jobs(self, record: StudyRecord, progress: StudyProgress) -> None:
        workers = self.side_by_side(record) if record.state.to_do else 0
        progress.start(f"{workers} workers")
        if workers and not any(self._room(record).values()):
            progress.line(f"no node of the cluster has {self._share_in_words(record)}: waiting for one")
        with self._handed_out(record, workers, str(self.checkpoint_seconds)) as tasks:
            follow(tasks, lambda: self._hand_out(record, str(self.checkpoint_seconds)), record, progress)

    @contextmanager
    def testing(self, record: StudyRecord, opening: int) -> Iterator[None]:
        """Tasks score runs beside this process; one that dies leaves its run to the others."""
        with self._handed_out(record, self.side_by_side(record) - 1, "test", str(opening)):
            yield

    @contextmanager
    def _handed_out(self, record: StudyRecord, workers: int, *what: str) -> Iterator[list[Handed]]:
        """Tasks, which are ended in the end: at Ctrl-C they write their last state."""
        tasks: list[Any] = []
        try:
            tasks += [self._hand_out(record, *what) for _ in range(workers)]
            yield tasks
        finally:
            for task in tasks:
                _ray().cancel(task.reference)
            if tasks:
                _ray().wait([task.reference for task in tasks], num_returns=len(tasks), timeout=END_SECONDS)

    def _hand_out(self, record: StudyRecord, *what: str) -> "_Task":
        cpus, gpus = self._share(record)
        # Ray would try again without end, and say nothing: `follow` does, and counts.
        remote = _ray().remote(name="worker", num_cpus=cpus, num_gpus=gpus, max_retries=0)(_do)
        return _Task(remote.remote(Share(record.folder, what, cpus)))

    def _share(self, record: StudyRecord) -> tuple[float, float]:
        """CPUs and GPUs of a task."""
        cpus = record.spec.threads if self.cpus is None else self.cpus
        if self.gpus is not None:
            return cpus, self.gpus
        use_gpus = _ray().cluster_resources().get("GPU", 0) > 0 and not on_cpu(record.spec)
        return cpus, devices_each(record.spec) if use_gpus else 0

    def _share_in_words(self, record: StudyRecord) -> str:
        cpus, gpus = self._share(record)
        return f"{cpus:g} CPUs" + f" and {gpus:g} GPUs" * (gpus > 0)

    def _room(self, record: StudyRecord) -> dict[str, int]:
        """How many tasks each node takes."""
        wanted = {kind: share for kind, share in zip(("CPU", "GPU"), self._share(record), strict=True) if share}
        nodes = {node["NodeID"]: node["Resources"] for node in _ray().nodes() if node["Alive"]}
        return {
            name: min((int(has.get(kind, 0) / share + 1e-6) for kind, share in wanted.items()), default=1)
            for name, has in nodes.items()
        }


class _Task:
    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def said(self) -> str | None:
        ray = _ray()
        if not ray.wait([self.reference], timeout=0)[0]:
            return None
        try:
            return ray.get(self.reference)
        except ray.exceptions.RayTaskError as error:
            said = " ".join(str(error.cause or error).split())[-200:]
            raise UserError(f"a Ray task ended with an error: has its node this levelfield? ({said})") from error
        except ray.exceptions.RayError as error:
            raise Died(f"its task ended with its node or process ({type(error).__name__})") from error


def _do(share: Share) -> str:
    with suppress(KeyboardInterrupt):  # cancelled, and its worker ended
        return share()
    return ""


def _ray() -> ModuleType:
    """Ray, where it is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray: Ray is not installed: pip install 'levelfield[ray]'") from None
    return ray
