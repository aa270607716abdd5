"""Which folder a fit writes into: a new one, or the one that the same command began and was stopped in."""

import copy
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment

from levelfield.data.places import dataset_without_ways
from levelfield.errors import UserError
from levelfield.storage.atomic import storing
from levelfield.storage.lock import LOCKS, Lock
from levelfield.storage.without_trackers import without_trackers

TOLD = "LEVELFIELD_RUN"  # how a fit tells the processes that it starts
LAST, BEST, CONFIG = "last.ckpt", "best.ckpt", "config.yaml"


@dataclass
class Claim:
    """A folder that one fit holds; while it is unfinished, `locks/` stands in it.

    Args:
        state: Whether the fit begins here, goes on here, or has nothing left to do.
    """

    folder: Path
    state: Literal["new", "unfinished", "finished"] = "new"

    def __post_init__(self) -> None:
        self._lock = Lock(self.folder, "fit", "fit")

    def take(self) -> bool:
        """Hold the folder, unless a living process does."""
        return self._lock.acquire()

    def release(self) -> None:
        """Leave the fit unfinished, or what its mistake left: a folder without a file is taken away."""
        self._lock.release()
        if self.state == "new" and self.folder.is_dir() and {path.name for path in self.folder.iterdir()} <= {LOCKS}:
            shutil.rmtree(self.folder)

    def finish(self) -> None:
        """Say that the fit is finished, and drop what going on would need."""
        self._lock.release()
        shutil.rmtree(self.folder / LOCKS, ignore_errors=True)
        (self.folder / LAST).unlink(missing_ok=True)
        self.state = "finished"

    def tell(self) -> None:
        """Let the processes that this one starts know the folder."""
        os.environ[TOLD] = json.dumps({"folder": str(self.folder), "state": self.state})

    @classmethod
    def told(cls) -> Self | None:
        """What the process that started this one said."""
        words = os.environ.get(TOLD)
        if words is None:
            return None
        content = json.loads(words)
        return cls(Path(content["folder"]), content["state"])


def claim(parent: Path, config: Mapping[str, Any], go_on: bool) -> Claim:
    """A folder in `parent` that no other fit writes into.

    Args:
        go_on: Whether the newest fit of that configuration is gone on with, if it was stopped.

    Raises:
        UserError: it is still running, or the folder cannot be made.
    """
    with storing(parent):
        if go_on or restarted():
            for folder in _of_configuration(parent, config):
                if not (folder / LOCKS).exists():
                    if (folder / BEST).exists():
                        return Claim(folder, "finished")
                    continue
                found = Claim(folder, "unfinished")
                if not found.take():
                    if not go_on:
                        continue  # of several equal fits in one allocation, another one's
                    raise UserError(
                        f"{folder}: this fit is running; wait for it, or leave --resume out for another one"
                    )
                if (folder / LAST).exists():
                    return found
                found.release()
        parent.mkdir(parents=True, exist_ok=True)
        number = max((int(path.name) for path in _numbered(parent)), default=-1) + 1
        while True:
            new = Claim(parent / str(number))
            try:
                new.folder.mkdir()
            except FileExistsError:  # another fit was quicker
                number += 1
                continue
            if new.take():
                return new


def restarted() -> bool:
    """Whether SLURM has requeued this job, or torchrun started its processes again."""
    counts = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    return any(os.environ.get(name, "0") not in ("", "0") for name in counts)


def determining(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that a training's numbers depend on, by more than rounding: not the processes."""
    plain = copy.deepcopy(dict(config))
    for key in ("name", "output", "checkpoint_seconds"):
        plain.pop(key, None)
    data = plain.get("data", {})
    if isinstance(data.get("dataset"), dict):
        data["dataset"] = dataset_without_ways(data["dataset"], data.get("root"))
    for key in ("root", "num_workers", "cache"):
        data.pop(key, None)
    if "trainer" in plain:
        plain["trainer"] = without_trackers(plain["trainer"])
        for key in ("enable_progress_bar", "devices", "num_nodes", "strategy"):
            plain["trainer"].pop(key, None)
    return plain


def _numbered(parent: Path) -> list[Path]:
    return sorted((path for path in parent.glob("*") if path.name.isdecimal()), key=lambda path: -int(path.name))


def _of_configuration(parent: Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """The folders of fits of a configuration, the newest first."""
    for folder in _numbered(parent):
        try:
            found = yaml.safe_load((folder / CONFIG).read_text())
        except (OSError, yaml.YAMLError):  # stopped before it was written
            continue
        if isinstance(found, dict) and determining(found) == determining(config):
            yield folder


def learns_from_group(trainer: Trainer) -> bool:
    """Whether srun or torchrun started the processes of a fit, so that none can tell another but by their group."""
    environment = getattr(trainer.strategy, "cluster_environment", None)  # of one process there is none
    return (
        trainer.world_size > 1
        and environment is not None
        and environment.creates_processes_externally
        and not isinstance(environment, LightningEnvironment)
    )
