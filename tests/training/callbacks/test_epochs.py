"""What the first epochs do differently, and which epochs are validated."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from small_fit import small_data, small_learner, small_trainer
from tiny_fit import TINY
from torch.optim.lr_scheduler import LinearLR

from levelfield.analysis.integrity import validation_scores
from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss
from levelfield.training.callbacks import NewWeightsFirst, UntilDone

Run = Callable[..., tuple[int, str, str]]


class Record(Callback):
    """Rates of each step, and the weights at the end of each epoch."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_train_start(self, trainer, pl_module) -> None:
        self.on_train_epoch_end(trainer, pl_module)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.weights.append({name: weight.detach().clone() for name, weight in pl_module.named_parameters()})


def recorded(*callbacks: Callback, **learner: object) -> Record:
    """A training of 2 epochs of 3 steps."""
    record = Record()
    trainer = small_trainer(*callbacks, record, max_epochs=2, limit_val_batches=0)
    trainer.fit(small_learner(ArcFaceLoss, **learner), small_data(steps_per_epoch=3, batch_size=8))
    return record


@pytest.mark.usefixtures("quiet")
def test_a_schedule_of_steps_may_itself_be_the_warm_up() -> None:
    """torch's linear schedule from a quarter over three steps; by epochs it is still at half after six."""
    schedule = {"lr_scheduler": partial(LinearLR, start_factor=0.25, total_iters=3), "trunk_lr": 1.0}
    assert recorded(**schedule, lr_scheduler_interval="step").rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert recorded(**schedule).rates == pytest.approx([0.25] * 3 + [0.5] * 3)


@pytest.mark.usefixtures("quiet")
def test_the_trunk_waits_and_then_trains() -> None:
    before, first, second = recorded(NewWeightsFirst(epochs=1), freeze_batch_norm=False).weights
    trunk = [name for name in before if name.startswith("trunk.")]
    assert all(torch.equal(first[name], before[name]) for name in trunk)
    assert not torch.equal(first["embedder.linear.weight"], before["embedder.linear.weight"])
    assert not torch.equal(first["loss.class_weights"], second["loss.class_weights"])
    assert all(not torch.equal(second[name], first[name]) for name in trunk if name.endswith("conv1.weight"))
    with pytest.raises(UserError, match=r"NewWeightsFirst\.epochs .*0"):
        NewWeightsFirst(epochs=0)


RARER = """
trainer:
  max_epochs: 30
  callbacks:
    - class_path: levelfield.training.callbacks.UntilDone
      init_args: {first: 4, every: 8, patience: 2}
model: {loss: ContrastiveLoss, embedder_lr: 0.0, trunk_lr: 0.0, weight_decay: 0.0}
"""
START = """
trainer:
  max_epochs: 3
  callbacks:
    - {class_path: levelfield.training.callbacks.ValidateFirst}
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val/map_at_r, mode: max, patience: 1}
model: {loss: ContrastiveLoss, embedding_size: 16, embedder_init: pca, embedder_lr: 0.0, trunk_lr: 0.0}
"""


def words(folder: Path, settings: str, name: str = "it") -> list[str]:
    (folder / f"{name}.yaml").write_text(settings)
    few = ["--data.dataset.num_classes", "24", "--data.steps_per_epoch", "2"]
    return ["fit", *TINY, "--config", str(folder / f"{name}.yaml"), *few, "--output", str(folder), "--name", name]


def test_the_steps_to_validate_at() -> None:
    counts = [UntilDone().validations(step) for step in range(4001)]
    found = [step for step in range(1, 4001) if counts[step] > counts[step - 1]]
    assert found == [100, 200, 400, 800, 1200, 1600, 2000, 2400, 2800, 3200, 3600, 4000]


@pytest.mark.parametrize(
    ("steps", "trainer", "epochs"),
    [
        # Steps 4, 8 and 16: the first of equals, then two that are no better.
        (2, [], [1, 3, 7]),
        # An epoch of 20 passes several of the steps at once.
        (20, [], [0, 1, 2]),
        # The last epoch is validated in any case.
        (3, ["--trainer.max_epochs", "4"], [1, 2, 3]),
        (2, ["--trainer.max_epochs", "-1", "--trainer.max_steps", "12"], [1, 3, 5]),
        # Steps 2, 4 and 8 of the optimizer.
        (4, ["--trainer.accumulate_grad_batches", "2"], [1, 3, 7]),
    ],
)
def test_patience_counts_validations(steps, trainer, epochs, run: Run, tmp_path: Path) -> None:
    """With rates of 0 each validation scores the same."""
    small = ["--data.steps_per_epoch", steps, "--data.batch_size", "8"]
    code, _, complaint = run(*words(tmp_path, RARER), *small, *trainer)
    assert code == 0, complaint
    scores = validation_scores(tmp_path / "fit/it/0/metrics.csv")
    assert [*scores] == epochs
    assert len(set(scores.values())) == 1
    assert torch.load(tmp_path / "fit/it/0/best.ckpt", weights_only=True)["epoch"] == epochs[0]


def test_refused_arguments(run: Run, tmp_path: Path) -> None:
    for arguments, key in [({"first": 0}, "first"), ({"first": 500}, "first"), ({"patience": 0}, "patience")]:
        with pytest.raises(UserError, match=rf"UntilDone\.{key}"):
            UntilDone(**arguments)
    for key, value in [("check_val_every_n_epoch", "2"), ("val_check_interval", "1")]:
        code, _, complaint = run(*words(tmp_path, RARER), f"--trainer.{key}", value)
        assert (code, f"--trainer.{key}" in complaint) == (2, True)


def test_the_start_is_kept_where_no_epoch_is_better(run: Run, tmp_path: Path) -> None:
    """With rates of 0 every epoch scores what the start does, and the first of equals is kept."""
    code, printed, complaint = run(*words(tmp_path, START))
    assert code == 0, complaint
    assert "before the first step" in printed
    best = torch.load(tmp_path / "fit/it/0/best.ckpt", weights_only=True)
    assert (best["epoch"], best["global_step"]) == (-1, 0)
    scores = validation_scores(tmp_path / "fit/it/0/metrics.csv")
    assert len(set(scores.values())) == 1
    # Early stopping compares trained epochs alone: with the start among them it would end after epoch 0.
    assert [*scores] == [-1, 0, 1]
    more = ["--trainer.max_epochs", "1", "--ckpt_path", str(tmp_path / "fit/it/0/best.ckpt")]
    code, _, complaint = run(*words(tmp_path, START, "on"), *more)
    assert code == 0, complaint
    assert [*validation_scores(tmp_path / "fit/on/0/metrics.csv")] == [-1, 0]
