"""Seeds what a training step draws, so that its draws depend on the seed and the step alone."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from levelfield.seeds import seed_of


def seed_draws(device: torch.device, *key: str | int) -> None:
    """Seed what draws on a device, by `seed_of(*key)`.

    `torch.manual_seed` would keep a traceback for each kind of accelerator that is not there, in case that it comes: a
    quarter of a head's step, and memory that never ends.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed_of(*key))
        return
    torch.default_generator.manual_seed(seed_of(*key))
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed_of(*key))


def step_key(trainer: Trainer, learner: LightningModule, batch_idx: int) -> tuple[Any, ...]:
    """What the draws of a training step follow from.

    Of the batches whose gradients are accumulated into one step, each draws its own.
    """
    return "step", getattr(learner, "seed", 0), trainer.global_step, batch_idx % trainer.accumulate_grad_batches
