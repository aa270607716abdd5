"""Let a plain Trainer keep the best epoch, and find the callbacks that kept it."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from levelfield.data.splits import NO_FOLD
from levelfield.training.callbacks.retrieval_validation import RetrievalValidation, monitor_of
from levelfield.training.weight_averaging import averages


class BestEpoch(Callback):
    """Lets the default checkpoint of a Trainer keep the epoch with the best `val/map_at_r`, not the last one.

    It sets the monitor of that `ModelCheckpoint`, or of one that you gave without monitor and file name. If the learner
    brought a `ModelCheckpoint`, Lightning would drop all those of the Trainer. The callback changes nothing if you gave
    another checkpoint, or if nothing is validated. `RetrievalValidation(selected_by=...)` selects another score.
    """

    def __init__(self) -> None:
        self._checkpoint: ModelCheckpoint | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        checkpoint = default_checkpoint(trainer)
        if stage == "fit" and checkpoint is not None and _scores(trainer):
            checkpoint.monitor, checkpoint.mode = monitor_of(trainer.callbacks), "max"  # type: ignore[attr-defined]
            checkpoint.kth_value = torch.tensor(-torch.inf)
            if averages(trainer.callbacks):  # type: ignore[attr-defined] # they may change after this
                checkpoint._save_on_train_epoch_end = False
            self._checkpoint = checkpoint

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._checkpoint is None or trainer.check_val_every_n_epoch != 1:
            return
        if self._checkpoint.monitor not in trainer.callback_metrics:  # no validation before the end (`max_steps`)
            self._checkpoint.monitor = self._checkpoint._save_on_train_epoch_end = None


def default_checkpoint(trainer: Trainer) -> ModelCheckpoint | None:
    """The Trainer's only checkpoint callback, if it has Lightning's defaults: it keeps the last epoch in one file."""
    checkpoint = trainer.checkpoint_callback
    if len(trainer.checkpoint_callbacks) != 1 or type(checkpoint) is not ModelCheckpoint:
        return None
    keeps_one = checkpoint.save_top_k == 1 and not checkpoint.save_last and checkpoint.filename is None
    return checkpoint if keeps_one and checkpoint.state_key == ModelCheckpoint().state_key else None


def best_checkpoints(trainer: Trainer) -> list[Any]:
    """The checkpoint callbacks that have stored the epoch with the best score, not others that a user gave."""
    monitor = monitor_of(trainer.callbacks)  # type: ignore[attr-defined]
    found = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    return [each for each in found if each.monitor == monitor and each.best_model_path]


def _scores(trainer: Trainer) -> bool:
    given = trainer.callbacks  # type: ignore[attr-defined]
    logs = any(isinstance(each, RetrievalValidation) for each in given)
    fold = getattr(getattr(trainer, "datamodule", None), "fold", None)
    return logs and trainer.enable_validation and fold != NO_FOLD
