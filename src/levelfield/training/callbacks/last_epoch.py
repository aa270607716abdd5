"""Write `last.ckpt`: a killed fit that resumes from it ends with the same bytes as an uninterrupted fit."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.loop import _Loop

from levelfield.core.errors import UserError
from levelfield.training.checkpoint import read_checkpoint
from levelfield.training.run_folder import BEST, LAST, MetricsFile


class LastEpoch(Callback):
    """Writes `last.ckpt` at the start of an epoch, with the state after all earlier epochs.

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
        self._sigterm: Any = None

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
            raise UserError(
                f"{self.path} was written with other {' and '.join(different)}: resume with the same, or leave "
                "--resume out to begin again"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sigterm = signal.getsignal(signal.SIGTERM)

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
            "metrics": _metrics_file(trainer).text,
        }
        for progress in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
            progress["ready"] = progress["completed"]  # the epoch that starts here does not count yet

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if "resume" not in checkpoint:  # a tuner, such as LearningRateFinder, loads the checkpoint that it wrote
            return
        self._resumes = True
        trainer.should_stop = checkpoint["resume"]["should_stop"]
        _metrics_file(trainer).restore(checkpoint["resume"]["metrics"])


def _metrics_file(trainer: Trainer) -> MetricsFile:
    return next(logger for logger in trainer.loggers if isinstance(logger, MetricsFile))
