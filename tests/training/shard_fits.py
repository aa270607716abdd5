"""Fits whose class weights lie over one, two and three processes; run once by `test_sharded_classes.py`.

Writes the checkpoints `<folder>/<case>_<what>.ckpt`: `plain` of one process with whole class weights, `<W>` of W
processes, `half` of two after the first of two epochs, and `from_half_<W>` of W that went on from it.
"""

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import fork
from lightning.pytorch import LightningDataModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.losses import ArcFaceLoss, ProxyAnchorLoss, SubCenterArcFaceLoss
from levelfield.training.lazy_adamw import LazyAdamW
from levelfield.training.learner import MetricLearner

CLASSES, BATCH = 11, 6


def sgd(parameters):
    return torch.optim.SGD(parameters)


# Loss, optimizer, clipping.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "whole": (partial(ArcFaceLoss, scale=8.0), torch.optim.AdamW, (0.5, "norm")),
    "drawn": (partial(SubCenterArcFaceLoss, sub_centers=2, scale=8.0, class_fraction=0.4), LazyAdamW, (0.5, "norm")),
    "value": (partial(ProxyAnchorLoss, class_fraction=0.7), sgd, (0.01, "value")),
}


class Points(LightningDataModule):
    """Two batches an epoch, of which each process has its part."""

    num_train_classes = CLASSES

    def train_dataloader(self) -> DataLoader:
        draw = torch.Generator().manual_seed(0)
        points = torch.randn(2 * BATCH, 5, generator=draw, dtype=torch.float64)
        labels = torch.randint(CLASSES, (2 * BATCH,), generator=draw)
        share = BATCH // self.trainer.world_size
        own = [start + self.trainer.global_rank * share + i for start in (0, BATCH) for i in range(share)]
        return DataLoader(TensorDataset(points[own], labels[own]), batch_size=share)


def fit(case: str, folder: Path, name: str, epochs: int = 2, start: str | None = None, shard: bool = True) -> None:
    loss, optimizer, (limit, algorithm) = CASES[case]
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(1)
    learner = MetricLearner(
        nn.Linear(5, 8),
        loss=partial(loss, shard_classes=shard),
        embedding_size=6,
        num_features=8,
        optimizer=optimizer,
        loss_lr=0.1,
        weight_decay=0.01,
    )
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if world_size > 1 else "auto",
        devices=world_size,
        precision="64-true",
        max_epochs=epochs,
        gradient_clip_val=limit,
        gradient_clip_algorithm=algorithm,
        use_distributed_sampler=False,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    begun = None if start is None else str(folder / f"{case}_{start}.ckpt")
    trainer.fit(learner, datamodule=Points(), ckpt_path=begun, weights_only=True)
    trainer.save_checkpoint(folder / f"{case}_{name}.ckpt")


def in_group(folder: Path, rank: int, world_size: int) -> None:
    if world_size > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
        sizes = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        os.environ.update({key: str(value) for key, value in {**ranks, **sizes}.items()})
        store = f"file://{folder}/store_{world_size}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    for case in CASES:
        if world_size == 1:
            fit(case, folder, "plain", shard=False)
        if world_size == 2:
            fit(case, folder, "half", epochs=1)
        fit(case, folder, str(world_size))
        fit(case, folder, f"from_half_{world_size}", start="half")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)  # Lightning reads a checkpoint before it makes the weights 64-true
    torch.set_num_threads(1)
    for size in (2, 1, 3):
        fork(size, lambda rank, size=size: in_group(Path(sys.argv[1]), rank, size))
