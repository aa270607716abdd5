"""Slots on a Ray cluster: one actor each, on whatever node has room.

The study's folder, the working directory and the data are on storage that all nodes share.
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

from levelfield.errors import UserError
from levelfield.runtime.freed_memory import keep_freed_memory
from levelfield.runtime.own_modules import find_own_modules
from levelfield.study.executors import devices_of_a_job, on_cpu, refuse_below_one
from levelfield.study.executors.local import WORK
from levelfield.study.jobs import study_jobs
from levelfield.study.spec import StudySpec

STORE_BYTES = 80 << 20  # nothing large is sent
# Variables of this process that the workers get.
SETTINGS = ("LEVELFIELD_DATA", "LEVELFIELD_CACHE")
# How long a cluster may be without a node that can work, or give no answer, until the study ends.
LOST_SECONDS = 15.0
ANSWER_SECONDS = 5.0
# One after the other, until the study ends: the code may be missing on the nodes.
MOST_FAILED_STARTS = 5


class Ray:
    """Actors of a cluster, or of this machine alone.

    Args:
        workers: How many actors; `auto` is as many as there is room for when the study begins, one a job at most.
        address: The cluster's, as `ray.init` takes it; by default RAY_ADDRESS, or this machine alone.
        cpus: CPUs of an actor; by default as many as a job has threads.
        gpus: GPUs of an actor, 0.25 for four on a GPU; by default as many as a job has devices, where the cluster has
            GPUs and the jobs do not say that they train on the CPU.

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
        refuse_below_one(workers=workers, cpus=cpus, gpus=gpus)
        self._ray = _connected(address or os.environ.get("RAY_ADDRESS") or "local")
        exceptions = self._ray.exceptions
        self.died = (exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.NodeDiedError)
        self._actors: dict[int, tuple[Any, Any]] = {}  # slot to its actor and to whether that has started
        self._share = {"CPU": float(cpus or spec.threads)}
        if gpus or (self._ray.cluster_resources().get("GPU", 0) > 0 and not on_cpu(spec)):
            self._share["GPU"] = float(gpus or devices_of_a_job(spec))
        room = self._room()
        if not room:
            self.stop()
            raise UserError(f"no node has {self._in_words()}: lower --threads, --executor.cpus or --executor.gpus")
        self.number = min(room, len(study_jobs(spec)) if workers == "auto" else workers)
        variables = {name: os.environ[name] for name in SETTINGS if name in os.environ}
        self._actor = self._ray.remote(_Worker).options(
            num_cpus=self._share["CPU"],
            num_gpus=self._share.get("GPU", 0),
            max_restarts=0,
            runtime_env={"env_vars": {**variables, "PYTHONSAFEPATH": "1"}},
        )
        self._lost_since: float | None = None
        self._failed_starts = 0

    def ready(self, slot: int) -> bool:
        """Whether the actor has started. It waits for room, and takes no unit before it has some."""
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
                raise UserError(f"no worker can start: has its node this levelfield? ({reason})") from None
            return False
        self._failed_starts = 0
        return True

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        return self._actors[slot][0].do.remote(function, *arguments).future()

    def drop(self, slot: int) -> None:
        del self._actors[slot]

    def check(self) -> None:
        """End a study whose cluster has lost its last node: Ray itself would wait for another without end."""
        if _answer(self._room):
            self._lost_since = None
            return
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._lost_since > LOST_SECONDS:
            self._actors.clear()  # they have ended
            raise UserError(
                f"the Ray cluster has no node left with {self._in_words()}; all finished jobs are kept: start a node "
                "and the command again"
            )

    def stop(self) -> None:
        # Where the cluster is gone, neither call may keep the study from its end.
        for actor, _ in self._actors.values():
            _answer(partial(self._ray.kill, actor))
        _answer(self._ray.shutdown)

    def _room(self) -> int:
        """How many actors the nodes have room for, whatever they do now."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(min(int(node.get(kind, 0) / share + 1e-6) for kind, share in self._share.items()) for node in nodes)

    def _in_words(self) -> str:
        return " and ".join(f"{share:g} {kind}s" for kind, share in self._share.items())


class _Worker:
    """The process of a slot, on whatever node."""

    def __init__(self, folder: str, path: list[str]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.chdir(folder)
        sys.path += [place for place in path if place not in sys.path]
        keep_freed_memory()
        find_own_modules()
        import_module(WORK)

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def _connected(address: str) -> Any:
    """Ray, connected to a cluster.

    Raises:
        UserError: it is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: any other process would starve the jobs
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray: Ray is not installed: pip install 'levelfield[ray]'") from None
    own = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == "local" else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--executor.address {address}: no Ray cluster answers ({reason})") from error
    finally:
        with suppress(ValueError):  # not the main thread, whose handler Ray replaces
            signal.signal(signal.SIGTERM, handler)
    return ray


def _answer(question: Callable[[], Any]) -> Any:
    """What a call to the cluster returns; None where it fails, or is still waiting after some seconds."""
    answers: list[Any] = []

    def call() -> None:
        with suppress(Exception):
            answers.append(question())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return answers[0] if answers else None
