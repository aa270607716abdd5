"""Seed the draws of any LightningModule by step, so that a resumed fit draws the same numbers."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.runtime.process_group import leave_group_at_exit, stay_in_group
from levelfield.training.random_draws import seed_draws, step_key


class RandomDraws(Callback):
    """Seeds dropout and every other draw of a training step by (seed, step, process).

    The seed is the module's attribute `seed`; without one it is that of `seed_everything`, or 0. Lightning sets a new
    random state when several processes form a group. This callback restores the earlier state, so that class weights
    start with the same values as on one process.
    """

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        stay_in_group(self._state)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        seed_draws(pl_module.device, *step_key(trainer, pl_module, batch_idx), "trunk", trainer.global_rank)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._state = torch.get_rng_state()
        leave_group_at_exit()
