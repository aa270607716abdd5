"""Slots on a Ray cluster: one actor each, on any node with room.

The folder of the study, the working directory and the data must be on shared storage.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Literal

from levelfield.core.errors import UserError, refuse_below
from levelfield.core.processes import SIDE_BY_SIDE, forget_launcher, keep_freed_memory
from levelfield.study.executors import devices_of_a_job, on_cpu
from levelfield.study.executors.local import WORK
from levelfield.study.jobs import study_jobs
from levelfield.study.spec import StudySpec

STORE_BYTES = 80 << 20  # only small objects are sent
# Variables of this process that workers inherit.
SETTINGS = ("LEVELFIELD_DATA", "LEVELFIELD_CACHE")
# Seconds that a cluster may have no usable node, or not answer, until the study ends.
LOST_SECONDS = 15.0
ANSWER_SECONDS = 5.0
# Consecutive failed starts until the study ends: the code may be missing on the nodes.
MOST_FAILED_STARTS = 5


class Ray:
    """Actors on a cluster, or only on this machine.

    Args:
        workers: Number of actors; `auto` takes as many as have room when the study begins, at most one per job.
        address: Address of the cluster as for `ray.init`; by default RAY_ADDRESS, or this machine only.
        cpus: CPUs per actor; by default the threads of a job.
        gpus: GPUs per actor, 0.25 for four actors per GPU; by default the devices of a job, if the cluster has GPUs and
            the jobs do not train on the CPU.

    Raises:
        UserError: Ray is not installed, no cluster answers, it has no room, or a number is not positive.
    """

    def __init__(
        self,
        spec: StudySpec,
        workers: int | Literal["auto"] = "auto",
        address: str | None = None,
        cpus: float | None = None,
        gpus: float | None = None,
    ) -> None:
        refuse_below(1, "executor", workers=None if workers == "auto" else workers)
        refuse_below(0.01, "executor", cpus=cpus, gpus=gpus)
        self._ray = _connected(address or os.environ.get("RAY_ADDRESS") or "local")
        exceptions = self._ray.exceptions
        self.died = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.NodeDiedError)
        self._actors: dict[int, tuple[Any, Any]] = {}  # slot to its actor and to its start
        self._share = {"CPU": float(cpus or spec.threads)}
        if gpus or (self._ray.cluster_resources().get("GPU", 0) > 0 and not on_cpu(spec)):
            self._share["GPU"] = float(gpus or devices_of_a_job(spec))
        rooms = self._rooms()
        if not any(rooms):
            self.stop()
            raise UserError(f"no node has {self._in_words()}: lower --threads, --executor.cpus or --executor.gpus")
        self.number = min(sum(rooms), len(study_jobs(spec)) if workers == "auto" else workers)
        variables = {name: os.environ[name] for name in SETTINGS if name in os.environ}
        variables[SIDE_BY_SIDE] = str(min(self.number, max(rooms)))  # the most on one node
        self._actor = self._ray.remote(_Worker).options(
            num_cpus=self._share["CPU"],
            num_gpus=self._share.get("GPU", 0),
            max_restarts=0,
            runtime_env={"env_vars": {**variables, "PYTHONSAFEPATH": "1"}},
        )
        self._lost_since: float | None = None
        self._failed_starts = 0

    def ready(self, slot: int) -> bool:
        """Whether the actor has started; it waits until a node has room."""
        if slot not in self._actors:
            actor = self._actor.remote(os.getcwd(), sys.path)
            self._actors[slot] = actor, actor.do.remote(os.getpid)
        _, started = self._actors[slot]
        if not self._ray.wait([started], timeout=0)[0]:
            return False
        try:
            self._ray.get(started)
        except self.died as error:
            self.drop(slot)
            self._failed_starts += 1
            if self._failed_starts == MOST_FAILED_STARTS:
                reason = " ".join(str(error).split())[-200:]
                raise UserError(f"no worker can start ({reason}): install this levelfield on all nodes") from None
            return False
        self._failed_starts = 0
        return True

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        return self._actors[slot][0].do.remote(function, *arguments).future()

    def drop(self, slot: int) -> None:
        del self._actors[slot]

    def check(self) -> None:
        """Raise an error if the cluster has lost its last node: Ray itself would wait forever."""
        if any(_answer(self._rooms) or []):
            self._lost_since = None
            return
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._lost_since > LOST_SECONDS:
            self._actors.clear()  # they are gone
            raise UserError(
                f"the Ray cluster has no node left with {self._in_words()}; finished jobs are kept: start a node, then "
                "the same command"
            )

    def stop(self) -> None:
        # If the cluster is gone, neither call may block the end of the study.
        for actor, _ in self._actors.values():
            _answer(partial(self._ray.kill, actor))
        _answer(self._ray.shutdown)

    def _rooms(self) -> list[int]:
        """The number of actors that fit on each node, ignoring its current load."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return [min(int(node.get(kind, 0) / share + 1e-6) for kind, share in self._share.items()) for node in nodes]

    def _in_words(self) -> str:
        return " and ".join(f"{share:g} {kind}s" for kind, share in self._share.items())


class _Worker:
    """The process of a slot, on any node."""

    def __init__(self, folder: str, path: list[str]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.chdir(folder)
        sys.path += [place for place in path if place not in sys.path]
        forget_launcher()  # of the node's Ray, whose variables this process has
        keep_freed_memory()
        import_module(WORK)

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def _connected(address: str) -> Any:
    """Ray, connected to a cluster.

    Raises:
        UserError: it is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_worker_niceness", "0")  # default 15: other processes would starve the jobs
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs pip install 'levelfield[ray]'") from None
    own = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == "local" else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--executor.address {address}: no Ray cluster answers ({reason})") from error
    finally:
        with suppress(ValueError):  # only the main thread has handlers
            signal.signal(signal.SIGTERM, handler)
    return ray


def _answer(question: Callable[[], Any]) -> Any:
    """The result of a call to the cluster; None if it fails or takes too long."""
    answers: list[Any] = []

    def call() -> None:
        with suppress(Exception):
            answers.append(question())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return answers[0] if answers else None
