"""Going on from a checkpoint with other rates or another schedule: what is asked is what is used."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from levelfield.errors import UserError

OPTIMISATION = (
    *("optimizer", "trunk_lr", "embedder_lr", "loss_lr", "weight_decay", "loss_weight_decay"),
    *("lr_scheduler", "lr_scheduler_interval", "layer_decay"),
)


class AskedRates(Callback):
    """Lets the optimizer and the schedule that are asked for replace those of a checkpoint, where they differ.

    The schedule then begins again, at the rates that are asked for. The optimizer's moments are kept as long as the
    optimizer and its arguments are the same.

    Args:
        differing: The learner's arguments of `OPTIMISATION` that differ from the checkpoint's.
        loss_arguments: The arguments of the loss that do.
    """

    def __init__(self, differing: Sequence[str], loss_arguments: Sequence[str]) -> None:
        self.differing = differing
        self.loss_arguments = loss_arguments
        self._checkpoint: dict[str, Any] | None = None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._checkpoint = checkpoint if "job" not in checkpoint else None  # a fit that goes on after a stop has both

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Between the making of the optimizers and the loading of their states."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is None:
            return
        for argument in self.loss_arguments:
            if isinstance(getattr(pl_module.loss, argument, None), Tensor):
                raise UserError(
                    f"--model.loss.{argument} is where a learnt weight begins, and the checkpoint's goes on: leave the "
                    "option out"
                )
        if not self.differing:
            return
        states = checkpoint["optimizer_states"]
        for number, optimizer in enumerate(trainer.optimizers):
            asked = optimizer.state_dict()
            kept = {} if "optimizer" in self.differing else {"state": states[number]["state"]}
            states[number] = {**asked, **kept}
        schedules = [copy.deepcopy(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs]
        checkpoint["lr_schedulers"] = schedules


def asked_rates(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> AskedRates:
    """What to do about the differences between the learner's arguments in a checkpoint and those that are asked for."""
    was, now = ((arguments.get("loss") or {}).get("init_args") or {} for arguments in (stored, asked))
    return AskedRates(
        [key for key in OPTIMISATION if stored.get(key) != asked.get(key)],
        [key for key in now if was.get(key) != now[key]],
    )
