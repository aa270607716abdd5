"""`last.ckpt`: what a training that was killed goes on from, to the bytes that it would have had undisturbed."""

import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from levelfield.checkpoint import read_checkpoint
from levelfield.errors import UserError
from levelfield.run_folder import MetricsFile

LAST = "last.ckpt"


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` at the end of an epoch, and puts back what Lightning does not.

    It must be the last callback, for it saves the others' state after they have seen the epoch.

    Args:
        folder: The training's folder.
        identity: Gives what determines the training, as plain values; a checkpoint of another one is not gone on
            from. Called when a checkpoint is read or written, which a short training never does.
        seconds: Least time between two checkpoints.
        started: When the training began, in `time.monotonic()`.
    """

    def __init__(self, folder: Path, identity: Callable[[], dict[str, Any]], seconds: float, started: float) -> None:
        self.path = folder / LAST
        self._identity = identity
        self._seconds = seconds
        self._writing = False
        self._earlier_seconds = 0.0
        self._started = self._written = started

    @property
    def elapsed(self) -> float:
        """Seconds of training, those before a kill among them."""
        return self._earlier_seconds + time.monotonic() - self._started

    def can_go_on(self) -> bool:
        """Whether `last.ckpt` is there, whole and of this training, and the best checkpoint of then still whole."""
        if not _is_whole(self.path):
            return False
        try:
            job = read_checkpoint(self.path).get("job")
        except UserError:
            return False
        best = self.path.with_name("best.ckpt")
        return job is not None and job["identity"] == self._identity() and (not job["best"] or _is_whole(best))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.strategy.broadcast(time.monotonic() - self._written >= self._seconds):
            return
        self._writing = True
        trainer.save_checkpoint(self.path)
        self._writing = False
        self._written = time.monotonic()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not self._writing:
            return
        checkpoint["job"] = {
            "identity": self._identity(),
            "folder": str(self.path.parent.resolve()),
            "best": self.path.with_name("best.ckpt").exists(),
            "seconds": self.elapsed,
            "should_stop": trainer.should_stop,
            "metrics": _metrics_file(trainer).text,
        }
        for progress in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
            progress["completed"] = progress["processed"]  # Lightning counts the epoch after this hook

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        job = checkpoint["job"]
        # ModelCheckpoint forgets its best score where its folder's name has changed.
        checkpoint["callbacks"] = _moved(checkpoint["callbacks"], job["folder"], str(self.path.parent.resolve()))
        self._earlier_seconds = job["seconds"]
        trainer.should_stop = job["should_stop"]
        _metrics_file(trainer).go_on_from(job["metrics"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The epoch of the checkpoint is over. Lightning would end it a second time: another count of its steps, and
        # another step of training where the epoch had no validation.
        trainer.fit_loop.restarting = False


def _metrics_file(trainer: Trainer) -> MetricsFile:
    return next(logger for logger in trainer.loggers if isinstance(logger, MetricsFile))


def _is_whole(path: Path) -> bool:
    """Whether every byte of a checkpoint is as it was written; torch reads its tensors without looking."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # a damaged archive can raise anything
        return False


def _moved(state: Any, old: str, new: str) -> Any:
    """Plain values with the paths within the folder `old` turned into paths within `new`."""
    if isinstance(state, dict):
        return {_moved(key, old, new): _moved(value, old, new) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_moved(value, old, new) for value in state)
    if isinstance(state, str) and (state == old or state.startswith(old + os.sep)):
        return new + state[len(old) :]
    return state
