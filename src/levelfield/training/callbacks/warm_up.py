"""Raises the learning rates from nearly nothing over the first steps."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from levelfield.errors import UserError


class WarmUp(Callback):
    """Step k of the first `steps`, from 1, has k / `steps` of each learning rate that the schedule gives it.

    The rates are lowered while the optimizer steps and stand as the schedule has them at any other time, so that
    schedules of epochs and of steps go on below it and a checkpoint holds the full rates.

    Args:
        steps: how many steps it takes.

    Raises:
        UserError: fewer than 1 step.
    """

    def __init__(self, steps: int = 100) -> None:
        if steps < 1:
            raise UserError(f"WarmUp.steps is {steps}: give 1 or more, or leave the callback out")
        self.steps = steps
        self._hooks: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def lower(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if trainer.global_step >= self.steps:
                return
            for group in optimizer.param_groups:
                group["full_lr"] = group["lr"]
                group["lr"] = group["full_lr"] * (trainer.global_step + 1) / self.steps

        def restore(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] = group.pop("full_lr", group["lr"])

        for optimizer in trainer.optimizers:
            self._hooks += [optimizer.register_step_pre_hook(lower), optimizer.register_step_post_hook(restore)]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        while self._hooks:
            self._hooks.pop().remove()
