"""The folder of a training: `config.yaml`, `metrics.csv`, `best.ckpt`, and `last.ckpt` until the training ends."""

import copy
import csv
import io
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from filelock import FileLock, Timeout
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.plugins.io import TorchCheckpointIO

from levelfield.core.errors import UserError
from levelfield.core.files import LOCKS, explain_write_errors, make_durable, write_atomically
from levelfield.core.paths import HERE, moved
from levelfield.core.processes import is_first_rank, was_interrupted
from levelfield.data.own import dataset_without_paths
from levelfield.training.checkpoint import read_checkpoint
from levelfield.training.frozen_trunk import with_trunk, without_trunk
from levelfield.training.trust import check_callbacks

LAST, BEST, CONFIG = "last.ckpt", "best.ckpt", "config.yaml"
# Settings that change results only by rounding, or not at all.
PLACES = {
    "": ("name", "output", "checkpoint_seconds"),
    "data": ("root", "num_workers", "cache"),
    "trainer": ("logger", "enable_progress_bar", "devices", "num_nodes", "strategy"),
}


class RunFolder:
    """A numbered folder of one fit. It has `locks/` until the fit is finished."""

    def __init__(self, path: Path, state: Literal["new", "unfinished", "finished"] = "new") -> None:
        self.path, self.state = path, state
        self._lock = FileLock(path / LOCKS / "fit.lock", thread_local=False)

    def hold(self) -> bool:
        """Lock the folder, unless a running process has locked it; returns whether it is locked."""
        with suppress(Timeout):
            self._lock.acquire(blocking=False)
        return self._lock.is_locked

    def release(self) -> None:
        """Unlock the folder of an unfinished fit; delete it if it has no file."""
        self._lock.release()
        if self.state == "new" and self.path.is_dir() and {each.name for each in self.path.iterdir()} <= {LOCKS}:
            shutil.rmtree(self.path)

    def finish(self) -> None:
        self._lock.release()
        shutil.rmtree(self.path / LOCKS, ignore_errors=True)
        (self.path / LAST).unlink(missing_ok=True)
        self.state = "finished"


def claim(parent: Path, config: Mapping[str, Any], resume: bool) -> RunFolder:
    """A locked folder in `parent`: with `resume` the newest one of this configuration, else a new one.

    Raises:
        UserError: the fit to resume is running, or the folder cannot be created.
    """
    with explain_write_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        earlier = sorted((path for path in parent.iterdir() if path.name.isdecimal()), key=lambda path: -int(path.name))
        for path in earlier if resume else []:
            try:
                known = yaml.safe_load((path / CONFIG).read_text())
            except (OSError, yaml.YAMLError):  # killed before it was written
                continue
            if not isinstance(known, dict) or determining(known) != determining(config):
                continue
            if not (path / LOCKS).exists():
                if (path / BEST).exists():
                    return RunFolder(path, "finished")
                continue
            found = RunFolder(path, "unfinished")
            if not found.hold():
                raise UserError(f"{path}: this fit is running; wait for it, or leave --resume out to start another")
            if (path / LAST).exists():
                return found
            found.release()
        number = int(earlier[0].name) + 1 if earlier else 0
        while True:
            found = RunFolder(parent / str(number))
            with suppress(FileExistsError):  # another fit was faster
                found.path.mkdir()
                found.hold()
                return found
            number += 1


def determining(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that changes results by more than rounding."""
    plain = copy.deepcopy(dict(config))
    data = plain.get("data", {})
    if isinstance(data.get("dataset"), dict):
        data["dataset"] = dataset_without_paths(data["dataset"])
    for section, keys in PLACES.items():
        for key in keys:
            (plain.get(section, {}) if section else plain).pop(key, None)
    return plain


class MetricsFile(CSVLogger):
    """Writes only `metrics.csv`; `config.yaml` has the hyper-parameters."""

    def log_hyperparams(self, params: Any = None) -> None:
        pass

    def save(self) -> None:
        with explain_write_errors(Path(self.log_dir, "metrics.csv")):
            super().save()

    def finalize(self, status: str) -> None:
        super().finalize(status)
        path = Path(self.log_dir, "metrics.csv")
        if is_first_rank() and path.exists():
            make_durable(path)

    @property
    def text(self) -> str:
        """All rows so far, as in the file; empty except on the first process."""
        if not is_first_rank():
            return ""
        self.save()
        path = Path(self.experiment.metrics_file_path)
        return path.read_bytes().decode() if path.exists() else ""

    def restore(self, text: str) -> None:
        """Replace the content of the file by `text`; later rows follow."""
        if text and is_first_rank():
            write_atomically(Path(self.experiment.metrics_file_path), text.encode())
            self.experiment.metrics_keys = next(csv.reader([text.splitlines()[0]]))


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints that are either complete or absent, even if the process is killed.

    Lightning uses the system's temporary folder, which may be on another file system and needs a copy. A checkpoint
    does not contain the name of its folder.

    Args:
        trunks: folder for frozen trunks; None stores the trunk in each checkpoint.
    """

    def __init__(self, trunks: Path | None = None) -> None:
        super().__init__()
        self.trunks = trunks

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if "callbacks" in checkpoint:
            folder = str(Path(path).parent.resolve())
            checkpoint = {**checkpoint, "callbacks": moved(checkpoint["callbacks"], folder, HERE)}
        if self.trunks is not None:
            checkpoint = without_trunk(checkpoint, self.trunks)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(Path(path), buffer.getvalue())

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(path, *args, **{**kwargs, "weights_only": True})
        check_callbacks(checkpoint.get("callbacks", {}), path)
        checkpoint = with_trunk(checkpoint, path)
        folder = str(Path(path).parent.resolve())
        return {**checkpoint, "callbacks": moved(checkpoint.get("callbacks", {}), HERE, folder)}


class BestCheckpoint(ModelCheckpoint):
    """Keeps the weights of the first epoch with the largest `monitor`, or of the last epoch without validation.

    `best.ckpt` has no state of the optimizer, which takes twice as much; `last.ckpt` has it. Its own class gives it its
    own state, next to a `ModelCheckpoint` of the user with the same monitor.

    Args:
        monitor: the logged score; None without validation.
        averages: whether weights are averaged. The average may change after a validation, at the end of the epoch.
    """

    def __init__(self, folder: Path, monitor: str | None, averages: bool = False) -> None:
        at_epoch_end = True if monitor is None else False if averages else None
        usual: dict[str, Any] = {"save_weights_only": True, "enable_version_counter": False, "mode": "max"}
        super().__init__(folder, "best", monitor, save_on_train_epoch_end=at_epoch_end, **usual)


class LastEpoch(Callback):
    """Writes `last.ckpt` at the start of an epoch, with the state after all earlier epochs.

    A killed fit that resumes from it ends with the same bytes as an uninterrupted fit.
    It must be the first callback. At the start of an epoch, every callback has finished the previous epoch: plateau
    schedules are updated and epoch-level logs are written.

    Args:
        folder: The run's folder.
        identity: Returns what determines the training, as plain values. `check` rejects the checkpoint of another one.
        seconds: Minimum time between two checkpoints; a shorter training writes none.
    """

    def __init__(self, folder: Path, identity: Callable[[], dict[str, Any]], seconds: float) -> None:
        self.path = folder / LAST
        self._identity = identity
        self._seconds = seconds
        self._written = time.monotonic()
        self._saves = self._resumes = False
        self._sigterm = signal.getsignal(signal.SIGTERM)

    def check(self) -> None:
        """Check that this training can resume from `last.ckpt`.

        Raises:
            UserError: the checkpoint belongs to other settings, data or code, or a file is damaged.
        """
        try:
            resume = read_checkpoint(self.path)["resume"]
        except (UserError, KeyError) as error:
            raise UserError(f"{self.path} is damaged: leave --resume out to begin again") from error
        if resume["best"] and not self.path.with_name(BEST).is_file():
            raise UserError(f"{self.path.with_name(BEST)} is missing: leave --resume out to begin again")
        here, then = self._identity(), resume["identity"]
        if different := sorted(key for key in here.keys() | then.keys() if here.get(key) != then.get(key)):
            raise UserError(f"{self.path} was written with other {' and '.join(different)}: leave --resume out")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sigterm is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._sigterm)  # Lightning's handler broadcasts in the middle of a step
        if self._resumes:  # with max_steps, Lightning would skip the next epoch as one that it had begun
            _Loop.restarting.fset(trainer.fit_loop, False)  # type: ignore[attr-defined] # its own setter may refuse
        self._resumes = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        due = trainer.current_epoch > 0 and time.monotonic() - self._written >= self._seconds
        if trainer.strategy.broadcast(due):  # the first process' clock
            self._saves = True
            trainer.save_checkpoint(self.path)
            self._saves, self._written = False, time.monotonic()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not self._saves:
            return
        checkpoint["resume"] = {
            "identity": self._identity(),
            "best": self.path.with_name(BEST).exists(),
            "should_stop": trainer.should_stop,  # early stopping may wait for min_epochs
            "metrics": trainer.loggers[0].text,  # type: ignore[attr-defined] # of MetricsFile
        }
        for progress in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
            progress["ready"] = progress["completed"]  # the epoch that starts here does not count yet

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if "resume" not in checkpoint:  # a tuner, such as LearningRateFinder, loads the checkpoint that it wrote
            return
        self._resumes = True
        trainer.should_stop = checkpoint["resume"]["should_stop"]
        trainer.loggers[0].restore(checkpoint["resume"]["metrics"])  # type: ignore[attr-defined]


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Lightning's exit after Ctrl-C back into a KeyboardInterrupt.

    Raises:
        KeyboardInterrupt: Ctrl-C or a signal, even if it also ended the loader processes.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except (SystemExit, RuntimeError) as stop:  # Lightning cannot tear down loaders that a signal has ended
        if not was_interrupted(stop):
            raise  # the user's code calls exit
        raise KeyboardInterrupt from None
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
