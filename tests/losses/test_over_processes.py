"""A training step of two processes has the loss and all gradients of one, with every loss, miner and regularizer.

As a script, writes `<folder>/<world size>.pt` of rank 0: for each case the loss, and the change of each weight by a
step of SGD with rate 1, which is its gradient. The learner trains with gradient caching in the cases "in chunks".
"""

import copy
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from forked import fork, run_script
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import LambdaCallback
from loss_cases import DRAWING, SETTINGS, make, shipped
from small_fit import small_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield import losses, miners, regularizers
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.callbacks import GradientCaching
from levelfield.training.learner import MetricLearner

LABELS = [4, 4, 4, 4, 1, 1, 4, 1, 0, 2, 3, 5]  # the second of two processes has no positive pair among its own rows
# A loss sees all of the embeddings, in chunks or not: those that draw, keep a state, or hold weights or other losses.
IN_CHUNKS = [
    "AdaFaceLoss()", "ArcFaceLoss(class_fraction=0.6)", "ContrastiveLoss()", "HISTLoss(hidden_size=8)",
    "PrototypicalLoss()", "RecallAtKLoss(similarity_mixup=True)", "StructuredClusteringLoss()",
    "TripletMarginLoss(triplets_per_anchor=3)", "WeightedSum()", "CrossBatchMemory()",
]  # fmt: skip
OF_MINERS = {  # the others take their defaults
    "TripletMarginMiner": {"margin": 0.5},
    "DistanceWeightedMiner": {"nonzero_loss_cutoff": 1.9},
    "UniformHistogramMiner": {"num_bins": 5, "pos_per_bin": 4, "neg_per_bin": 4},
}


class Case(NamedTuple):
    """The learner's loss, miner, regularizer and `chunk_size`."""

    loss: nn.Module
    miner: nn.Module | None = None
    regularizer: regularizers.Regularizer | None = None
    chunk_size: int | None = None


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for kind in shipped():
        drawing = [DRAWING[kind.__name__]] if kind.__name__ in DRAWING else []
        for arguments in SETTINGS.get(kind.__name__, [{}]) + drawing:
            torch.manual_seed(3)
            options = ", ".join(f"{name}={value}" for name, value in arguments.items())
            found[f"{kind.__name__}({options})"] = Case(make(kind, **arguments))
    torch.manual_seed(3)
    parts = {"a": losses.ContrastiveLoss(), "b": losses.LiftedStructureLoss(), "c": losses.ArcFaceLoss(20, 6)}
    found["WeightedSum()"] = Case(losses.WeightedSum(parts, {"c": 0.3}))
    found["CrossBatchMemory()"] = Case(losses.CrossBatchMemory(losses.ContrastiveLoss(), 6, 24))
    found |= {f"{name}, in chunks": found[name]._replace(chunk_size=3) for name in IN_CHUNKS}
    for name in sorted({*miners.__all__} - {"Miner"}):
        found[f"{name}()"] = Case(losses.TripletMarginLoss(), getattr(miners, name)(**OF_MINERS.get(name, {})))
    found["ArcFaceLoss() with a miner"] = Case(losses.ArcFaceLoss(20, 6), miners.MultiSimilarityMiner())
    for name in sorted({*regularizers.__all__} - {"Regularizer"}):
        found[f"{name}()"] = Case(losses.ArcFaceLoss(20, 6), None, getattr(regularizers, name)())
    return found


class Points(LightningDataModule):
    """One batch, of which each process has its share."""

    num_train_classes = 20

    def train_dataloader(self) -> DataLoader:
        points = torch.randn(len(LABELS), 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        share = len(LABELS) // self.trainer.world_size
        own = slice(self.trainer.global_rank * share, (self.trainer.global_rank + 1) * share)
        return DataLoader(TensorDataset(points[own], torch.tensor(LABELS)[own]), batch_size=share)


def gradients(case: Case, world_size: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    learner = MetricLearner(
        ModuleTrunk(nn.Sequential(nn.Linear(5, 7), nn.Tanh()), num_features=7),
        loss=copy.deepcopy(case.loss),
        **{"miner": case.miner, "regularizer": case.regularizer, "embedding_size": 6, "normalize": False},
        **{"optimizer": torch.optim.SGD, "weight_decay": 0.0},
        **dict.fromkeys(("trunk_lr", "embedder_lr", "loss_lr"), 1.0),
    ).double()
    before = {name: weight.detach().clone() for name, weight in learner.named_parameters()}
    losses_of: list[Tensor] = []
    keep = LambdaCallback(on_train_batch_end=lambda *step: losses_of.append(step[2]["loss"].detach()))
    processes = {"strategy": "ddp" if world_size > 1 else "auto", "devices": world_size}
    caching = [] if case.chunk_size is None else [GradientCaching(case.chunk_size)]
    one_step = {"precision": "64-true", "limit_val_batches": 0, "use_distributed_sampler": False}
    small_trainer(keep, *caching, **processes, **one_step).fit(learner, datamodule=Points())
    steps = {name: before[name] - weight.detach() for name, weight in learner.named_parameters()}
    return {"loss": losses_of[-1], **steps}


def in_group(folder: Path, rank: int, world_size: int) -> None:
    if world_size > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
        sizes = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        os.environ.update({key: str(value) for key, value in {**ranks, **sizes}.items()})
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    listed = {name: case for name, case in cases().items() if world_size > 1 or case.chunk_size is None}
    found = {name: gradients(case, world_size) for name, case in listed.items()}
    if rank == 0:
        torch.save(found, folder / f"{world_size}.pt")


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], case: str) -> None:
    assert found.keys() == expected.keys()
    for weight, right in expected.items():
        difference, size = float((found[weight] - right).abs().max()), max(float(right.abs().max()), 1e-6)
        assert difference <= 1e-9 * size, f"{case}: {weight} differs by {difference} of {size}"


@pytest.mark.processes
def test_loss_and_gradients_are_those_of_one_process_in_chunks_too(tmp_path: Path) -> None:
    run_script(Path(__file__), str(tmp_path))
    alone, together = torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "2.pt")
    assert len(alone) == len(cases()) - len(IN_CHUNKS)
    for name, expected in alone.items():
        assert any(gradient.any() for weight, gradient in expected.items() if weight.startswith("trunk")), name
        assert_close(together[name], expected, name)
    chunked = together.keys() - alone.keys()
    assert len(chunked) == len(IN_CHUNKS)
    for name in chunked:
        assert_close(together[name], alone[name.removesuffix(", in chunks")], name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for size in (1, 2):
        fork(size, lambda rank, size=size: in_group(Path(sys.argv[1]), rank, size))
