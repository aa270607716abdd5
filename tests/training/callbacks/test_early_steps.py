"""What the first steps do differently: rates that warm up, a trunk that waits."""

import warnings
from functools import partial
from typing import Any, Literal

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch.optim.lr_scheduler import ExponentialLR, LinearLR

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss
from levelfield.models import TimmTrunk
from levelfield.training.callbacks import NewWeightsFirst
from levelfield.training.learner import MetricLearner

HALVED = partial(ExponentialLR, gamma=0.5)


class Record(Callback):
    """Rates of each step, and the weights at the end of each epoch."""

    def __init__(self) -> None:
        self.rates: list[dict[str, float]] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.rates.append({group["name"]: group["lr"] for group in optimizer.param_groups})

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.weights.append({name: weight.detach().clone() for name, weight in pl_module.named_parameters()})


def train(
    callback: Callback,
    epochs: int = 2,
    interval: Literal["epoch", "step"] = "epoch",
    schedule: Any = HALVED,
) -> tuple[Record, dict[str, torch.Tensor]]:
    """A training of `epochs` times 3 steps, with a schedule that halves the rates; the weights before it."""
    torch.manual_seed(0)
    learner = MetricLearner(
        TimmTrunk("test_resnet", weights=None),
        loss=ArcFaceLoss,
        embedding_size=8,
        trunk_lr=1e-3,
        embedder_lr=1e-2,
        freeze_batch_norm=False,
        lr_scheduler=schedule,
        lr_scheduler_interval=interval,
    )
    before = {name: weight.detach().clone() for name, weight in learner.named_parameters()}
    transforms = ImageTransforms(crop_size=32, resize=32)
    data = MetricDataModule(Glyphs(num_classes=40), steps_per_epoch=3, transforms=transforms)
    record = Record()
    with warnings.catch_warnings():
        for notice in (".*does not have many workers.*", ".*LeafSpec.*", ".*logging interval.*"):
            warnings.filterwarnings("ignore", notice)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback, record],
        )
        trainer.fit(learner, data)
    return record, before


def test_a_schedule_of_steps_may_itself_be_the_warm_up() -> None:
    """torch's linear schedule from a quarter over three steps; by epochs it is still at half after six."""
    linear = partial(LinearLR, start_factor=0.25, total_iters=3)
    record, _ = train(Callback(), interval="step", schedule=linear)
    assert [rates["trunk"] / 1e-3 for rates in record.rates] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    record, _ = train(Callback(), schedule=linear)
    assert [rates["trunk"] / 1e-3 for rates in record.rates] == pytest.approx([0.25] * 3 + [0.5] * 3)


def test_the_trunk_waits_and_then_trains() -> None:
    record, before = train(NewWeightsFirst(epochs=1))
    first, second = record.weights
    trunk = [name for name in before if name.startswith("trunk.")]
    (weights,) = (name for name in first if name.startswith("loss."))
    assert all(torch.equal(first[name], before[name]) for name in trunk)
    assert not torch.equal(first["embedder.linear.weight"], before["embedder.linear.weight"])
    assert not torch.equal(first[weights], second[weights])
    assert all(not torch.equal(second[name], first[name]) for name in trunk if name.endswith("conv1.weight"))


def test_no_epochs_are_refused() -> None:
    with pytest.raises(UserError, match=r"NewWeightsFirst\.epochs .*0"):
        NewWeightsFirst(epochs=0)
