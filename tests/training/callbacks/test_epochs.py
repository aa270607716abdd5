"""What the first epochs do differently, which are validated, and the best one or average, which is kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback, ModelCheckpoint
from refused import refused, succeeded
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_fit import TINY
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.analysis.verify import validation_scores
from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.build import Training
from levelfield.training.callbacks import BestEpoch, HeadFirst, UntilDone, ValidateFirst
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore:.*is not empty", "ignore:.*no `val_dataloader`", "ignore:.*ranks is zero"),
]
STILL = "--model.loss ContrastiveLoss --model.embedder_lr 0 --model.trunk_lr 0"
UNTIL_DONE = "UntilDone --trainer.callbacks.first 4 --trainer.callbacks.every 8 --trainer.callbacks.patience 2"
RARER = f"{STILL} --model.weight_decay 0 --trainer.max_epochs 30 --trainer.callbacks+ {UNTIL_DONE}"
BY_SCORE = "--trainer.callbacks.monitor val/map_at_r --trainer.callbacks.mode max --trainer.callbacks.patience 1"
START = f"{STILL} --model.embedder_init pca --model.embedding_size 16 --trainer.max_epochs 3 --trainer.callbacks+ "
START += f"ValidateFirst --trainer.callbacks+ EarlyStopping {BY_SCORE}"
PATIENCE = [
    (2, [], [1, 3, 7]),  # steps 4, 8 and 16: the first of equals, then two that are no better
    (20, [], [0, 1, 2]),  # an epoch passes several of the steps at once
    (3, ["--trainer.max_epochs", "4"], [1, 2, 3]),  # the last epoch is validated in any case
    (4, ["--trainer.accumulate_grad_batches", "2"], [1, 3, 7]),  # steps 2, 4 and 8 of the optimizer
]
EMA = "lightning.pytorch.callbacks.EMAWeightAveraging"
OF_EPOCHS = {"decay": 0.5, "update_every_n_steps": 0, "update_starting_at_epoch": 0}
BY_STEP, BY_EPOCH = ({"class_path": EMA, "init_args": each} for each in ({"decay": 0.9}, OF_EPOCHS))
FIRST = {"class_path": "levelfield.training.callbacks.ValidateFirst"}
JOBS = {
    "after each epoch, a frozen trunk": ([BY_EPOCH], {"loss": "ContrastiveLoss", "freeze_trunk": True}),
    "after each step, class weights": ([BY_STEP], {}),
    "from a PCA, which is the best": ([FIRST, BY_STEP], {"embedder_init": "pca", "trunk_lr": 0.1}),
}


def words(folder: Path, settings: str, name: str = "it") -> list[str]:
    few = ["--data.dataset.num_classes", "24", "--data.steps_per_epoch", "2"]
    return ["fit", *TINY, *settings.split(), *few, "--output", str(folder), "--name", name]


def test_the_steps_to_validate_at() -> None:
    counts = [UntilDone().validations(step) for step in range(4001)]
    found = [step for step in range(1, 4001) if counts[step] > counts[step - 1]]
    assert found == [100, 200, 400, 800, 1200, 1600, 2000, 2400, 2800, 3200, 3600, 4000]


@pytest.mark.parametrize(("steps", "more", "epochs"), PATIENCE)
def test_patience_counts_validations(steps, more, epochs, run, tmp_path: Path) -> None:
    """With rates of 0 each validation scores the same, and the start is kept."""
    small = ["--data.steps_per_epoch", steps, "--data.batch_size", "8"]
    succeeded(run(*words(tmp_path, RARER), *small, *more))
    scores = validation_scores(tmp_path / "fit/it/0/metrics.csv")
    assert [*scores] == [-1, *epochs]
    assert len(set(scores.values())) == 1
    assert torch.load(tmp_path / "fit/it/0/best.ckpt", weights_only=True)["epoch"] == -1


def test_refused_arguments(run, tmp_path: Path) -> None:
    for arguments, key in [({"first": 0}, "first"), ({"first": 500}, "every"), ({"patience": 0}, "patience")]:
        with pytest.raises(UserError, match=rf"callbacks\.{key}"):
            UntilDone(**arguments)
    with pytest.raises(UserError, match=r"callbacks\.epochs 0"):
        HeadFirst(epochs=0)
    for key, value in [("check_val_every_n_epoch", "2"), ("val_check_interval", "1")]:
        refused(run(*words(tmp_path, RARER), f"--trainer.{key}", value), f"--trainer.{key}")


def test_the_start_is_kept_where_no_epoch_is_better(run, tmp_path: Path) -> None:
    """With rates of 0 every epoch scores what the start does, and the first of equals is kept."""
    printed = succeeded(run(*words(tmp_path, START)))
    assert "before the first step" in printed
    best = torch.load(tmp_path / "fit/it/0/best.ckpt", weights_only=True)
    assert (best["epoch"], best["global_step"]) == (-1, 0)
    scores = validation_scores(tmp_path / "fit/it/0/metrics.csv")
    assert len(set(scores.values())) == 1
    # Early stopping compares trained epochs alone: with the start among them it would end after epoch 0.
    assert [*scores] == [-1, 0, 1]
    more = ["--trainer.max_epochs", "1", "--ckpt_path", str(tmp_path / "fit/it/0/best.ckpt")]
    succeeded(run(*words(tmp_path, START, "on"), *more))
    assert [*validation_scores(tmp_path / "fit/on/0/metrics.csv")] == [-1, 0]


loaded = MetricLearner.load_from_checkpoint
LABELS = torch.arange(24) // 6
POINTS = torch.eye(8)[LABELS] + 0.1 * torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
LOADER = DataLoader(TensorDataset(POINTS, LABELS), batch_size=12)
GOOD, BAD = torch.eye(4, 8), torch.eye(8)[[7] * 4]  # all classes apart, or in one place


def weights(*of_epochs: torch.Tensor) -> Callback:
    """Sets the embedder's weights as each epoch begins."""

    def copy(trainer, module) -> None:
        module.embedder.linear.weight.data.copy_(of_epochs[trainer.current_epoch])

    return LambdaCallback(on_train_epoch_start=copy)


def still() -> MetricLearner:
    rates = {"trunk_lr": 0.0, "embedder_lr": 0.0}
    return MetricLearner(ModuleTrunk(nn.Identity(), 8), ContrastiveLoss(), embedding_size=4, **rates)


def trainer(folder: Path, *callbacks: Callback, **arguments) -> Trainer:
    return small_trainer(*callbacks, default_root_dir=folder, enable_checkpointing=True, **arguments)


@pytest.mark.parametrize("given", [[], [ModelCheckpoint]])
def test_the_best_epoch_is_kept_and_loads_alone(given, tmp_path) -> None:
    mine = [kind(dirpath=tmp_path / "mine") for kind in given]
    plain = trainer(tmp_path, weights(BAD, GOOD, BAD), *mine, max_epochs=3)
    plain.fit(still(), LOADER, LOADER)
    best = plain.checkpoint_callback
    assert mine in ([], [best])
    assert Path(best.best_model_path).parent == (tmp_path / "mine" if mine else tmp_path / "checkpoints")
    assert [path.name for path in Path(best.best_model_path).parent.iterdir()] == ["epoch=1-step=4.ckpt"]
    assert float(best.best_model_score) == 1.0 > float(plain.callback_metrics["val/map_at_r"])
    alone = loaded(best.best_model_path, trunk=ModuleTrunk(nn.Identity(), 8), loss=ContrastiveLoss())
    assert trainer(tmp_path).validate(alone, LOADER, verbose=False)[0]["val/map_at_r"] == 1.0
    assert plain.validate(still(), LOADER, ckpt_path="best", verbose=False)[0]["val/map_at_r"] == 1.0


def test_a_second_fit_of_the_trainer_and_a_resumed_one_keep_what_is_best_of_all(tmp_path) -> None:
    learner, plain = still(), trainer(tmp_path, weights(BAD, GOOD, BAD, BAD), max_epochs=2)
    plain.fit(learner, LOADER, LOADER)
    (first,) = Path(plain.checkpoint_callback.dirpath).iterdir()
    plain.fit_loop.max_epochs = 4
    plain.fit(learner, LOADER, LOADER)
    assert plain.current_epoch == 4
    assert sum(isinstance(each, BestEpoch) for each in plain.callbacks) == 1
    resumed = trainer(tmp_path, weights(BAD, GOOD, BAD, BAD), max_epochs=4)
    resumed.fit(still(), LOADER, LOADER, ckpt_path=first, weights_only=True)
    for each in (plain, resumed):
        assert list(first.parent.iterdir()) == [first] == [Path(each.checkpoint_callback.best_model_path)]


def test_a_training_without_a_validation_keeps_its_last_step(tmp_path) -> None:
    no_fold = small_learner(), small_data(16, fold="none", steps_per_epoch=1)
    for number, (given, limit) in enumerate(((no_fold, 2), ((still(), LOADER, []), 2), ((still(), LOADER, LOADER), 1))):
        plain = trainer(tmp_path / f"{number}", **{"max_steps" if limit == 1 else "max_epochs": limit})
        plain.fit(*given)
        assert "val/map_at_r" not in plain.callback_metrics
        kept = torch.load(plain.checkpoint_callback.best_model_path, weights_only=True)
        assert kept["global_step"] == plain.global_step


@pytest.mark.parametrize("fold", ["1", "none"])
def test_a_fit_of_no_step_validates_and_keeps_its_start(fold: str, run, tmp_path: Path) -> None:
    """Nothing could train: the trunk is frozen and has no layer on top."""
    frozen = "--model.freeze_trunk true --model.embedder IdentityEmbedder --model.embedding_size null"
    succeeded(run(*words(tmp_path, f"{RARER} {frozen} --trainer.max_steps 0 --data.fold {fold}")))
    folder = tmp_path / "fit/it/0"
    best = torch.load(folder / "best.ckpt", weights_only=True)
    assert (best["epoch"], best["global_step"]) == (-1, 0)
    learner = loaded(folder / "best.ckpt")
    assert learner.embedding_size == learner.trunk.num_features
    if fold != "none":
        assert [*validation_scores(folder / "metrics.csv")] == [-1]


def score(learner: Any, data: Any) -> float:
    data.setup("validate")
    embedded = embed(learner.eval(), data.eval_dataloader(data.val_subset))
    return retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]


@pytest.mark.filterwarnings("ignore:.*WeightAveraging callback")
def test_a_plain_trainer_keeps_and_tests_what_it_scored(tmp_path: Path) -> None:
    learner, data = small_learner(embedder_lr=0.1), small_data(32, steps_per_epoch=2, batch_size=16)
    plain = trainer(tmp_path, EMAWeightAveraging(decay=0.9), ValidateFirst(), max_epochs=2)
    plain.fit(learner, data)
    best = plain.checkpoint_callback
    kept = float(best.best_model_score)
    assert score(loaded(best.best_model_path), data) == pytest.approx(kept, abs=1e-6)
    (again,) = plain.validate(learner, data, ckpt_path="best", verbose=False)
    assert again["val/map_at_r"] == pytest.approx(kept, abs=1e-6)
    assert float(best.best_model_score) == kept, "as the checkpoint has it"
    plain.test(learner, data, ckpt_path="best", verbose=False)
    for name, value in torch.load(best.best_model_path, weights_only=True)["state_dict"].items():
        assert torch.equal(learner.state_dict()[name], value), name


@pytest.mark.parametrize("case", JOBS)
def test_the_weights_that_were_scored_are_in_the_checkpoint_of_a_job(case, tmp_path) -> None:
    callbacks, model = JOBS[case]
    given = {"loss": "ArcFaceLoss", "trunk_lr": 0.01, "embedder_lr": 0.1, **model}
    config = small_config(model=given, trainer={"max_epochs": 3, "callbacks": callbacks}, data={"fold": 0})
    training = Training(config, tmp_path, trunks=tmp_path / TRUNKS).build()
    training.trainer.fit(training.model, datamodule=training.datamodule)
    best = tmp_path / "best.ckpt"
    assert score(loaded(best), training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert training.best_epoch == -1 or not case.endswith("the best")
    assert torch.load(best, weights_only=True).keys().isdisjoint({"current_model_state", "averaging_state"})
