"""Warn if several processes train on the same samples."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from levelfield.training.batches import Batch, gather_rows


class WarnOfSameSamples(Callback):
    """Compares the processes' first batches: a sampler that ignores its rank gives each of them the same samples.

    Each process would then compute the same gradient, and the batch would be smaller than it looks.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.world_size == 1 or trainer.global_step or batch_idx:
            return
        index = Batch.read(batch).index
        if index is None:
            return
        of_ranks = gather_rows(pl_module, index).reshape(trainer.world_size, -1)
        # All samples of a process: two processes may share some, of a class with few samples.
        if any(torch.isin(of_ranks[rank], of_ranks[:rank]).all() for rank in range(1, trainer.world_size)):
            rank_zero_warn(
                "several processes train on the same samples: let the sampler give each process its own (by its rank)",
                category=UserWarning,
            )
