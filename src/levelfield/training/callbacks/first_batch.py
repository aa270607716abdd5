"""Warn of a first training batch that cannot train well."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from levelfield.models.trunks import Standardise
from levelfield.training.batches import Batch, gather_rows, read_known


class CheckFirstBatch(Callback):
    """Warns if several processes train on the same samples, or if images are standardised twice.

    It looks at the first batch of a fit only. Batches that only your own `training_step` can read are not checked.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step or batch_idx or (read := read_known(batch)) is None:
            return
        if any(isinstance(part, Standardise) for part in pl_module.modules()):
            _check_range(read)
        if trainer.world_size > 1 and isinstance(read.index, Tensor):
            _check_processes(trainer.world_size, gather_rows(pl_module, read.index))


def _check_range(batch: Batch) -> None:
    """Warn unless images are in [0, 1], or a little outside of it from interpolation or noise."""
    images = batch.samples
    if batch.are_features or not isinstance(images, Tensor) or not images.is_floating_point():
        return
    low, high = (float(each) for each in images.aminmax())
    if low < -0.5 or high > 1.5:
        rank_zero_warn(
            f"the images reach from {low:.3g} to {high:.3g}, but the trunk standardises images in [0, 1] itself: leave "
            "Normalize out of your transforms, and divide bytes by 255",
            category=UserWarning,
        )


def _check_processes(world_size: int, index: Tensor) -> None:
    """Warn if a sampler ignores its rank: the processes compute the same gradient, and the batch is smaller."""
    of_ranks = index.reshape(world_size, -1)
    # All samples of a process: two processes may share some, of a class with few samples.
    if any(torch.isin(of_ranks[rank], of_ranks[:rank]).all() for rank in range(1, world_size)):
        rank_zero_warn(
            "several processes train on the same samples: let the sampler give each process its own (by its rank)",
            category=UserWarning,
        )
