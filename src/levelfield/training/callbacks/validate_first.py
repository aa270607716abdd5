"""Validate before the first step, so that the initial weights can be the best checkpoint."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

# The epoch of the initial weights in `metrics.csv` and `best_epoch`.
BEFORE_TRAINING = -1


class ValidateFirst(Callback):
    """Validates before the first step; `ModelCheckpoint` keeps the initial weights if no epoch is better.

    Use it for good initial weights, such as `--model.embedder_init pca`. In `metrics.csv` they are epoch -1. Early
    stopping counts only trained epochs, because a training may first get worse. A training that continues from a
    checkpoint is not validated again.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is not None or trainer.fast_dev_run or not trainer.enable_validation:  # type: ignore[attr-defined]
            return
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        stops = [(each, each.state_dict()) for each in callbacks if isinstance(each, EarlyStopping)]
        epochs = trainer.fit_loop.epoch_progress.current
        epochs.completed = BEFORE_TRAINING  # for loggers and checkpoints
        try:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True
            for checkpoint in callbacks:
                if isinstance(checkpoint, ModelCheckpoint) and checkpoint.monitor in trainer.callback_metrics:
                    # `ModelCheckpoint` saves nothing before the first step.
                    checkpoint._save_topk_checkpoint(trainer, checkpoint._monitor_candidates(trainer))
        finally:
            epochs.completed = 0
        trainer.should_stop = False
        for stop, state in stops:
            stop.load_state_dict(state)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if checkpoint["epoch"] == BEFORE_TRAINING:  # a fit that continues from it begins with epoch 0
            checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"] = 0
