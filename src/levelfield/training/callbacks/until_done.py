"""When to validate: before the first step, and until the score stops rising, less often in longer trainings."""

from math import ceil, inf
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from levelfield.core.errors import UserError, refuse_below
from levelfield.metrics.definitions import MONITOR
from levelfield.training.callbacks.retrieval_validation import monitor_of

# The epoch of the initial weights in `metrics.csv` and `best_epoch`.
BEFORE_TRAINING = -1


class ValidateFirst(Callback):
    """Validates before the first step; `ModelCheckpoint` keeps the initial weights if no epoch is better.

    Use it for good initial weights, such as `--model.embedder_init pca`. In `metrics.csv` they are epoch -1. Early
    stopping counts only trained epochs, because a training may first get worse. A training that continues from a
    checkpoint is not validated again.
    """

    _keeps_unscored = False  # in a checkpoint callback without monitor

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is not None or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        stops = [(each, each.state_dict()) for each in callbacks if isinstance(each, EarlyStopping)]
        epochs = trainer.fit_loop.epoch_progress.current
        epochs.completed = BEFORE_TRAINING  # for loggers and checkpoints
        try:
            if trainer.enable_validation:
                trainer.validating = True
                trainer.fit_loop.epoch_loop.val_loop.run()
                trainer.training = True
            kept = {*trainer.callback_metrics, *([None] if self._keeps_unscored else [])}
            for checkpoint in callbacks:
                if isinstance(checkpoint, ModelCheckpoint) and checkpoint.monitor in kept:
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


class KeepStart(ValidateFirst):
    """Keeps the initial weights, validated if there are validation classes, and ends before the first step.

    `--trainer.max_steps 0` adds it: Lightning alone would end before anything is validated or saved.
    """

    _keeps_unscored = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            vars(pl_module)["configure_optimizers"] = list  # none: perhaps nothing could train

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        trainer.should_stop = True


class UntilDone(ValidateFirst, EarlyStopping):
    """Validates the start, after `first` steps, then whenever the steps have doubled, but every `every` steps at least.

    By default after 100, 200, 400 and 800 steps, then every 400. A validation runs at the end of the epoch that reaches
    such a step, and at the end of the last epoch, unless `max_steps` ends inside it. The training ends after `patience`
    validations without a better `val/map_at_r` (or another score of `RetrievalValidation.selected_by`). `max_epochs` or
    `max_steps` of the Trainer are the cap.

    Args:
        first: Steps before the first validation.
        every: Most steps between two validations.
        patience: Validations without a better score until the training ends.

    Attributes:
        is_done: Whether patience ended the training, not the cap.

    Raises:
        UserError: less than one step or validation, or a Trainer that sets when to validate.
    """

    def __init__(self, first: int = 100, every: int = 400, patience: int = 3) -> None:
        refuse_below(1, "trainer.callbacks", first=first, patience=patience)
        refuse_below(first, "trainer.callbacks", every=every)
        super().__init__(MONITOR, mode="max", patience=patience, check_on_train_epoch_end=False)
        self.first, self.every = first, every

    @property
    def is_done(self) -> bool:
        return self.stopping_reason != EarlyStoppingReason.NOT_STOPPED

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.monitor = monitor_of(trainer.callbacks)  # type: ignore[attr-defined]
        super().setup(trainer, pl_module, stage)
        for key, usual in (("check_val_every_n_epoch", 1), ("val_check_interval", 1.0)):
            found = getattr(trainer, key)
            if stage == "fit" and (type(found), found) != (type(usual), usual):  # an interval of 1 is a batch
                raise UserError(f"--trainer.{key}: UntilDone decides when to validate; leave one of the two out")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.on_train_epoch_start(trainer, pl_module)  # for a resumed training, whose epoch does not start again

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            trainer.check_val_every_n_epoch = 1

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let Lightning validate at the end of this epoch, or not."""
        epoch, batches = trainer.current_epoch + 1, trainer.num_training_batches
        steps = ceil(batches / trainer.accumulate_grad_batches) if batches < inf else self.every
        is_last = epoch == trainer.max_epochs or 0 < trainer.max_steps <= epoch * steps
        is_due = is_last or self.validations(epoch * steps) > self.validations((epoch - 1) * steps)
        trainer.check_val_every_n_epoch = epoch if is_due else epoch + 1  # Lightning tests whether it divides the epoch

    def validations(self, steps: int) -> int:
        """Number of validations planned in the first `steps` steps."""
        number, at = 0, self.first
        while at <= steps:
            number, at = number + 1, min(2 * at, at + self.every)
        return number
