"""What the first steps do differently: rates that warm up, a trunk that waits."""

import warnings
from functools import partial
from pathlib import Path
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
from levelfield.training.callbacks import NewWeightsFirst, WarmUp
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
    checkpoint: Path | None = None,
) -> tuple[Record, dict[str, torch.Tensor]]:
    """A training of `epochs` times 3 steps, with a schedule that halves the rates; the weights before it.

    It goes on from `checkpoint` if that is there, and else ends in it.
    """
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
        resumed = checkpoint is not None and checkpoint.exists()
        trainer.fit(learner, data, ckpt_path=checkpoint if resumed else None)
        if checkpoint is not None and not resumed:
            trainer.save_checkpoint(checkpoint)
    return record, before


def test_rates_warm_up_and_leave_the_schedule_alone() -> None:
    """Over 2 of 6 steps; the schedule halves the rates after each epoch of 3 steps."""
    record, _ = train(WarmUp(steps=2))
    assert [rates["embedder"] for rates in record.rates] == pytest.approx([5e-3, 1e-2, 1e-2, 5e-3, 5e-3, 5e-3])
    assert [rates["trunk"] for rates in record.rates] == pytest.approx([5e-4, 1e-3, 1e-3, 5e-4, 5e-4, 5e-4])


def test_a_schedule_of_steps_goes_on_below_the_warm_up() -> None:
    """Step k has 2^(1-k) of the rate by the schedule, and a third of k of that in the first three."""
    record, _ = train(WarmUp(steps=3), interval="step")
    expected = [0.5 ** (k - 1) * min(k / 3, 1) for k in range(1, 7)]
    assert [rates["embedder"] / 1e-2 for rates in record.rates] == pytest.approx(expected)


def test_a_warm_up_that_is_broken_off_goes_on_where_it_was(tmp_path: Path) -> None:
    """Over 5 steps, the first 3 of them in one training; the schedule has halved the rates by then."""
    first, _ = train(WarmUp(steps=5), epochs=1, checkpoint=tmp_path / "last.ckpt")
    [groups] = [state["param_groups"] for state in torch.load(tmp_path / "last.ckpt")["optimizer_states"]]
    assert {group["name"]: group["lr"] for group in groups}["embedder"] == pytest.approx(5e-3), "the whole rate"
    second, _ = train(WarmUp(steps=5), epochs=2, checkpoint=tmp_path / "last.ckpt")
    assert [rates["embedder"] for rates in first.rates] == pytest.approx([2e-3, 4e-3, 6e-3])
    assert [rates["embedder"] for rates in second.rates] == pytest.approx([4e-3, 5e-3, 5e-3])


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


@pytest.mark.parametrize(("callback", "key"), [(WarmUp, "steps"), (NewWeightsFirst, "epochs")])
def test_no_steps_are_refused(callback, key: str) -> None:
    with pytest.raises(UserError, match=rf"{callback.__name__}\.{key} .*0"):
        callback(**{key: 0})
