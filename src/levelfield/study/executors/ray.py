"""Slots on a Ray cluster: one actor each, on any node with room.

The folder of the study, the working directory and the data must be on shared storage.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal

from levelfield.core.errors import UserError, refuse_below
from levelfield.core.processes import SIDE_BY_SIDE
from levelfield.study.executors import devices_of_a_job, on_cpu
from levelfield.study.executors.local import SAFE_PATH, begin_worker
from levelfield.study.jobs import study_jobs
from levelfield.study.spec import StudySpec

STORE_BYTES = 80 << 20  # only small objects are sent
# Variables of this process that workers inherit.
SETTINGS = ("LEVELFIELD_DATA", "LEVELFIELD_CACHE")


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
        self._actors: dict[int, tuple[Any, Any]] = {}  # slot to its actor and to its start
        share = {"CPU": float(cpus or spec.threads)}
        if gpus or (self._ray.cluster_resources().get("GPU", 0) > 0 and not on_cpu(spec)):
            share["GPU"] = float(gpus or devices_of_a_job(spec))
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # The number of actors that fit on each node, ignoring its current load.
        rooms = [min(int(node.get(kind, 0) / each + 1e-6) for kind, each in share.items()) for node in nodes]
        if not any(rooms):
            self.stop()
            needed = " and ".join(f"{each:g} {kind}s" for kind, each in share.items())
            raise UserError(f"no node has {needed}: lower --threads, --executor.cpus or --executor.gpus")
        self.number = min(sum(rooms), len(study_jobs(spec)) if workers == "auto" else workers)
        variables = {name: os.environ[name] for name in SETTINGS if name in os.environ}
        variables[SIDE_BY_SIDE] = str(min(self.number, max(rooms)))  # the most on one node
        self._actor = self._ray.remote(_Worker).options(
            num_cpus=share["CPU"],
            num_gpus=share.get("GPU", 0),
            runtime_env={"env_vars": {**variables, SAFE_PATH: "1"}},
        )

    def ready(self, slot: int) -> bool:
        """Whether the actor has started, or could not; it waits until a node has room."""
        if slot not in self._actors:
            actor = self._actor.remote(os.getcwd(), sys.path)
            self._actors[slot] = actor, actor.do.remote(os.getpid)
        return bool(self._ray.wait([self._actors[slot][1]], timeout=0)[0])

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        return self._actors[slot][0].do.remote(function, *arguments).future()

    def drop(self, slot: int) -> None:
        del self._actors[slot]

    def stop(self) -> None:
        for actor, _ in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()


class _Worker:
    """The process of a slot, on any node."""

    def __init__(self, folder: str, path: list[str]) -> None:
        os.chdir(folder)
        sys.path += [place for place in path if place not in sys.path]
        begin_worker()

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def _connected(address: str) -> Any:
    """Ray, connected to a cluster."""
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
