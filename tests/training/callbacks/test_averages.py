"""Averages of weights, of start and trained ones and moving ones: those that were scored are kept and tested."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import levelfield, torchrun
from lightning.pytorch.callbacks import EMAWeightAveraging
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_fit import TINY

from levelfield.core.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.training.build import build
from levelfield.training.callbacks import AverageWithStart, ValidateFirst
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner

EMA = "lightning.pytorch.callbacks.EMAWeightAveraging"
OF_EPOCHS = {"decay": 0.5, "update_every_n_steps": 0, "update_starting_at_epoch": 0}
BY_STEP, BY_EPOCH = ({"class_path": EMA, "init_args": each} for each in ({"decay": 0.9}, OF_EPOCHS))
FIRST = {"class_path": "levelfield.training.callbacks.ValidateFirst"}
MODELS = {
    "trained": {"freeze_batch_norm": False},
    "a frozen trunk": {"freeze_trunk": True},
    "from a PCA": {"embedder_init": "pca"},
}
STILL = {"trunk_lr": 0.0, "embedder_lr": 0.0, "weight_decay": 0.0, "freeze_batch_norm": True}


def average(alpha: Any) -> dict[str, Any]:
    return {"class_path": "levelfield.training.callbacks.AverageWithStart", "init_args": {"alpha": alpha}}


def fitted(folder: Path, callbacks: list[dict[str, Any]], model: dict[str, Any], fold: Any = 0) -> Any:
    config = small_config(
        model={"loss": "ArcFaceLoss", "trunk_lr": 0.01, "embedder_lr": 0.1, **model},
        trainer={"max_epochs": 3, "callbacks": callbacks},
        data={"fold": fold},
    )
    training = build(config, folder, progress=False, trunks=folder / TRUNKS)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    return training


loaded = MetricLearner.load_from_checkpoint


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint's, a frozen trunk's as well."""
    return loaded(folder / "best.ckpt").state_dict()


def mixed(alpha: float, one: dict[str, torch.Tensor], trained: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """In float64, of all but the loss' own weights and what counts."""
    return {
        name: value if name.startswith("loss.") or not value.is_floating_point() else
        (alpha * value.double() + (1 - alpha) * one[name].double()).float()
        for name, value in trained.items()
    }  # fmt: skip


def score(learner: Any, data: Any) -> float:
    data.setup("validate")
    embedded = embed(learner.eval(), data.eval_dataloader(data.val_subset))
    return retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7, msg=name)


def test_a_number_keeps_that_average_of_the_last_epoch(tmp_path: Path) -> None:
    """The steps are those of a training that averages nothing."""
    model = {"freeze_batch_norm": False}
    fitted(tmp_path / "plain", [], model, "none")
    training = fitted(tmp_path / "mixed", [average(0.3)], model, "none")
    fitted(tmp_path / "start", [], STILL, "none")
    one, trained = weights(tmp_path / "start"), weights(tmp_path / "plain")
    assert not torch.equal(one["embedder.linear.weight"], trained["embedder.linear.weight"])
    assert_near(weights(tmp_path / "mixed"), mixed(0.3, one, trained))
    assert training.ending == {"steps": 6, "best_step": 6}


IN_PYTHON = {
    "half of each": lambda: [AverageWithStart(0.5)],
    "EMA": lambda: [EMAWeightAveraging(decay=0.9), ValidateFirst()],
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore:.*WeightAveraging callback")
@pytest.mark.parametrize("case", IN_PYTHON)
def test_a_plain_trainer_keeps_and_tests_what_it_scored(case: str, tmp_path: Path) -> None:
    learner, data = small_learner(embedder_lr=0.1), small_data(32, steps_per_epoch=2, batch_size=16)
    trainer = small_trainer(*IN_PYTHON[case](), max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(learner, data)
    best = trainer.checkpoint_callback
    kept = float(best.best_model_score)
    assert score(loaded(best.best_model_path), data) == pytest.approx(kept, abs=1e-6)
    (again,) = trainer.validate(learner, data, ckpt_path="best", verbose=False)
    assert again["val/map_at_r"] == pytest.approx(kept, abs=1e-6)
    assert float(best.best_model_score) == kept, "as the checkpoint has it"
    trainer.test(learner, data, ckpt_path="best", verbose=False)
    for name, value in torch.load(best.best_model_path, weights_only=True)["state_dict"].items():
        assert torch.equal(learner.state_dict()[name], value), name


@pytest.mark.full
@pytest.mark.processes
def test_two_processes_keep_the_same_average(tmp_path: Path) -> None:
    # Adam turns the last bits of small gradients into steps of full length.
    model = {"optimizer": "torch.optim.SGD", "embedder_lr": 0.1, "loss": "ContrastiveLoss"}
    trainer = {"callbacks": [average(0.5)], "max_epochs": 3, "accelerator": "cpu"}
    settings = {"model": model, "trainer": trainer, "data": {"steps_per_epoch": 4}}
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(settings))
    words = ["fit", *TINY, "--config", str(tmp_path / "fit.yaml")]
    two = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    found = []
    for name, more, count in (("one", [], 1), ("two", two, 2)):
        for done in torchrun(*levelfield(*words, *more, "--name", name), folder=tmp_path, num_processes=count):
            assert done.returncode == 0, done.stderr
        folder = tmp_path / "outputs/fit" / name / "0"
        found.append(weights(folder))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    for alpha in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match=r"AverageWithStart\.alpha"):
            AverageWithStart(alpha)
    with pytest.raises(UserError, match="AverageWithStart"):
        fitted(tmp_path, [average(0.5), {"class_path": EMA}], {})


JOBS = {
    "after each epoch, a frozen trunk": ([BY_EPOCH], {"loss": "ContrastiveLoss", "freeze_trunk": True}),
    "after each step, class weights": ([BY_STEP], {}),
    "from a PCA, which is the best": ([FIRST, BY_STEP], {"embedder_init": "pca", "trunk_lr": 0.1}),
    "with the start, a frozen trunk": ([FIRST, average(0.3)], MODELS["a frozen trunk"]),
    "with the start, from a PCA": ([FIRST, average(0.3)], MODELS["from a PCA"]),
}


@pytest.mark.parametrize("case", JOBS)
def test_the_weights_that_were_scored_are_in_the_checkpoint_of_a_job(case, tmp_path) -> None:
    training = fitted(tmp_path, *JOBS[case])
    best = tmp_path / "best.ckpt"
    assert score(loaded(best), training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert training.best_epoch == -1 or not case.endswith("the best")
    assert torch.load(best, weights_only=True).keys().isdisjoint({"current_model_state", "averaging_state"})
