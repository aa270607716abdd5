"""Seed the draws of a training step, so that they depend only on the seed and the step."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from levelfield.core.seeds import global_seed, seed_of


def seed_draws(device: torch.device, *key: str | int) -> None:
    """Seed the generators of a device by `seed_of(*key)`.

    `torch.manual_seed` would store a traceback for each missing kind of accelerator. This takes a quarter of the time
    of a head's step, and ever more memory.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed_of(*key))
        return
    torch.default_generator.manual_seed(seed_of(*key))
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed_of(*key))


def step_key(trainer: Trainer, learner: LightningModule, batch_idx: int) -> tuple[Any, ...]:
    """The key that seeds the draws of a training step.

    Batches that are accumulated into one step have different draws.
    """
    seed = global_seed(getattr(learner, "seed", None))
    return "step", seed, trainer.global_step, batch_idx % trainer.accumulate_grad_batches
