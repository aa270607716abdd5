"""A callback that kills its fit, and a learner with a plateau schedule: for the tests of `--resume`."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from levelfield.training.learner import MetricLearner

KILL = "KILL_AT"


class Killed(BaseException):
    """Stands for SIGKILL where a test runs the fit in its own process."""


class KillAt(Callback):
    """Kills its fit at epoch and batch of `KILL_AT="2 1"`, `"2 1 validation"`, and stores as `end.pt` how a fit ends.

    A signal's name at the end is sent to the first process; without one `Killed` is raised.
    """

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self._kill(trainer, f"{trainer.current_epoch} {batch_idx}")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *_) -> None:
        self._kill(trainer, f"{trainer.current_epoch} {batch_idx} validation")

    def _kill(self, trainer: Trainer, now: str) -> None:
        wanted, _, name = os.environ.get(KILL, "").partition(" SIG")
        if trainer.is_global_zero and wanted == now:
            if not name:
                raise Killed
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])

    def on_train_end(self, trainer, pl_module) -> None:
        if trainer.is_global_zero:
            optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
            end = {"weights": pl_module.state_dict(), "optimizers": optimizers, "steps": trainer.global_step}
            torch.save(end, Path(trainer.default_root_dir, "end.pt"))


class PlateauLearner(MetricLearner):
    """Lowers its rates after each epoch that is no better."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, threshold=0.05)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/map_at_r"}}
