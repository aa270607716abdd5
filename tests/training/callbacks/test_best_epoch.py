"""A plain Trainer keeps the best epoch, unless it was given a checkpoint of another kind."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from small_fit import small_data, small_learner, small_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.losses import ContrastiveLoss
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.callbacks import BestEpoch, ValidateFirst
from levelfield.training.learner import MetricLearner

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore:.*is not empty", "ignore:.*no `val_dataloader`", "ignore:.*ranks is zero"),
]
LABELS = torch.arange(24) // 6
POINTS = torch.eye(8)[LABELS] + 0.1 * torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
GOOD, BAD = torch.eye(4, 8), torch.eye(8)[[7] * 4]  # all classes apart, or in one place


class Points(nn.Identity):
    num_features = 8


class Weights(Callback):
    """Sets the embedder's weights as each epoch begins, and notes its score."""

    def __init__(self, *of_epochs: torch.Tensor) -> None:
        self.of_epochs, self.scores = of_epochs, []

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        pl_module.embedder.linear.weight.data.copy_(self.of_epochs[trainer.current_epoch])

    def on_validation_end(self, trainer, pl_module) -> None:
        self.scores.append(float(trainer.callback_metrics["val/map_at_r"]))


def still() -> MetricLearner:
    rates = {"trunk_lr": 0.0, "embedder_lr": 0.0}
    return MetricLearner(ModuleTrunk(Points(), 8), ContrastiveLoss(), embedding_size=4, **rates)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(POINTS, LABELS), batch_size=12)


def trainer(folder: Path, *callbacks: Callback, **arguments) -> Trainer:
    return small_trainer(*callbacks, **{"default_root_dir": folder, "enable_checkpointing": True, **arguments})


@pytest.mark.parametrize("given", [[], [ModelCheckpoint]])
def test_the_best_epoch_is_kept_and_loads_alone(given, tmp_path) -> None:
    weights = Weights(BAD, GOOD, BAD)
    mine = [kind(dirpath=tmp_path / "mine") for kind in given]
    plain = trainer(tmp_path, weights, *mine, max_epochs=3)
    plain.fit(still(), loader(), loader())
    best = plain.checkpoint_callback
    assert mine in ([], [best])
    assert Path(best.best_model_path).parent == (tmp_path / "mine" if mine else tmp_path / "checkpoints")
    assert [path.name for path in Path(best.best_model_path).parent.iterdir()] == ["epoch=1-step=4.ckpt"]
    assert weights.scores[1] == float(best.best_model_score) == 1.0 > max(weights.scores[::2])
    found = torch.load(best.best_model_path, weights_only=True)
    assert found["epoch"] == 1
    loaded = MetricLearner.load_from_checkpoint(best.best_model_path, trunk=Points(), loss=ContrastiveLoss())
    assert trainer(tmp_path).validate(loaded, loader(), verbose=False)[0]["val/map_at_r"] == 1.0
    assert plain.validate(still(), loader(), ckpt_path="best", verbose=False)[0]["val/map_at_r"] == 1.0


def test_a_second_fit_of_the_trainer_and_a_resumed_one_keep_what_is_best_of_all(tmp_path) -> None:
    learner, plain = still(), trainer(tmp_path, Weights(BAD, GOOD, BAD, BAD), max_epochs=2)
    plain.fit(learner, loader(), loader())
    (first,) = Path(plain.checkpoint_callback.dirpath).iterdir()
    plain.fit_loop.max_epochs = 4
    plain.fit(learner, loader(), loader())
    assert plain.current_epoch == 4
    assert sum(isinstance(each, BestEpoch) for each in plain.callbacks) == 1
    resumed = trainer(tmp_path, Weights(BAD, GOOD, BAD, BAD), max_epochs=4)
    resumed.fit(still(), loader(), loader(), ckpt_path=first, weights_only=True)
    for each in (plain, resumed):
        assert list(first.parent.iterdir()) == [first] == [Path(each.checkpoint_callback.best_model_path)]


def test_the_start_counts_where_it_is_validated(tmp_path) -> None:
    learner, plain = still(), trainer(tmp_path, Weights(BAD), ValidateFirst(), max_epochs=1)
    learner.embedder.linear.weight.data.copy_(GOOD)
    plain.fit(learner, loader(), loader())
    assert torch.load(plain.checkpoint_callback.best_model_path, weights_only=True)["epoch"] == -1


OTHERS = {
    "a monitor": lambda folder: [ModelCheckpoint(folder, monitor="val/r_precision", mode="max")],
    "all epochs": lambda folder: [ModelCheckpoint(folder, save_top_k=-1)],
    "the last as well": lambda folder: [ModelCheckpoint(folder, save_last=True)],
    "steps": lambda folder: [ModelCheckpoint(folder, every_n_train_steps=3)],
    "two": lambda folder: [ModelCheckpoint(folder / "last"), ModelCheckpoint(folder, save_top_k=-1, every_n_epochs=2)],
    "no validation": lambda folder: [ModelCheckpoint(folder)],
    "no loader": lambda folder: [ModelCheckpoint(folder)],
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_checkpoint_stays_as_it_is(case, tmp_path) -> None:
    given = OTHERS[case](tmp_path)
    limits = {"limit_val_batches": 0} if case == "no validation" else {}
    plain = trainer(tmp_path, *given, max_epochs=2, **limits)
    kept = plain.checkpoint_callbacks
    before = [(each.monitor, each.mode, each.save_top_k) for each in kept]
    plain.fit(still(), loader(), *([] if case == "no loader" else [loader()]))
    assert plain.checkpoint_callbacks == kept
    assert [(each.monitor, each.mode, each.save_top_k) for each in kept] == before


def test_without_checkpoints_or_a_fit_there_is_none(tmp_path) -> None:
    plain = trainer(tmp_path, max_epochs=1, enable_checkpointing=False)
    plain.fit(still(), loader(), loader())
    assert plain.checkpoint_callbacks == list(tmp_path.iterdir()) == []
    plain = trainer(tmp_path)
    plain.validate(still(), loader(), verbose=False)
    assert plain.checkpoint_callback.monitor is None


def test_a_training_without_a_validation_fold_keeps_its_last_epoch(tmp_path) -> None:
    plain = trainer(tmp_path, max_epochs=2)
    plain.fit(small_learner(), small_data(16, fold="none", steps_per_epoch=1))
    assert plain.checkpoint_callback.monitor is None
    assert torch.load(plain.checkpoint_callback.best_model_path, weights_only=True)["epoch"] == 1


def test_a_training_that_ends_before_its_first_validation_keeps_its_last_step(tmp_path) -> None:
    for limits, loaders in [({"max_steps": 1}, loader()), ({"max_epochs": 2}, [])]:
        plain = trainer(tmp_path, **limits)
        plain.fit(still(), loader(), loaders)
        assert "val/map_at_r" not in plain.callback_metrics
        kept = torch.load(plain.checkpoint_callback.best_model_path, weights_only=True)
        assert kept["global_step"] == plain.global_step
