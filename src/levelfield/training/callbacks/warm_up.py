"""Raises the learning rates from nearly nothing over the first steps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.errors import UserError


class WarmUp(Callback):
    """Step k of the first `steps`, from 1, has k / `steps` of each learning rate.

    Args:
        steps: how many steps it takes.

    Raises:
        UserError: fewer than 1 step.
    """

    def __init__(self, steps: int = 100) -> None:
        if steps < 1:
            raise UserError(f"WarmUp.steps is {steps}: give 1 or more, or leave the callback out")
        self.steps = steps

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if trainer.global_step >= self.steps:
            return
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                # Kept in the group, and so in a checkpoint: a resumed run goes on from the rate that was asked for.
                full = group.setdefault("full_lr", group["lr"])
                group["lr"] = full * (trainer.global_step + 1) / self.steps
