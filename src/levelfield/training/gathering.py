"""The rows that the processes of a Trainer hold, put together."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import Tensor


def gather_rows(module: LightningModule, rows: Tensor, sync_grads: bool = False) -> Tensor:
    """The rows of all processes, in the order of ranks; each process must hold as many."""
    if module.trainer.world_size == 1:
        return rows
    gathered = module.all_gather(rows, sync_grads=sync_grads)
    assert isinstance(gathered, Tensor)
    return gathered.flatten(0, 1)
