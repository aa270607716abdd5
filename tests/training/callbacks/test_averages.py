"""Averages of weights: moving ones that were scored are kept and tested, and the mean with the start."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import levelfield, torchrun
from lightning.pytorch.callbacks import EMAWeightAveraging
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_fit import TINY

from levelfield.metrics import retrieval_metrics
from levelfield.training.build import Training
from levelfield.training.callbacks import ValidateFirst
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner
from levelfield.training.weight_averaging import between

EMA = "lightning.pytorch.callbacks.EMAWeightAveraging"
OF_EPOCHS = {"decay": 0.5, "update_every_n_steps": 0, "update_starting_at_epoch": 0}
BY_STEP, BY_EPOCH = ({"class_path": EMA, "init_args": each} for each in ({"decay": 0.9}, OF_EPOCHS))
FIRST = {"class_path": "levelfield.training.callbacks.ValidateFirst"}


def fitted(folder: Path, callbacks: list[dict[str, Any]], model: dict[str, Any], fold: Any = 0) -> Any:
    config = small_config(
        model={"loss": "ArcFaceLoss", "trunk_lr": 0.01, "embedder_lr": 0.1, **model},
        trainer={"max_epochs": 3, "callbacks": callbacks},
        data={"fold": fold},
    )
    training = Training(config, folder, trunks=folder / TRUNKS).build()
    training.trainer.fit(training.model, datamodule=training.datamodule)
    return training


loaded = MetricLearner.load_from_checkpoint


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint's, a frozen trunk's as well."""
    return loaded(folder / "best.ckpt").state_dict()


def score(learner: Any, data: Any) -> float:
    data.setup("validate")
    embedded = embed(learner.eval(), data.eval_dataloader(data.val_subset))
    return retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]


def test_the_mean_with_the_start_is_that_of_float64_and_keeps_what_has_not_changed() -> None:
    torch.manual_seed(0)
    start = {"trained": torch.randn(50), "frozen": torch.randn(50) / 3, "steps": torch.tensor(0)}
    trained = {**start, "trained": torch.randn(50), "steps": torch.tensor(7)}
    found = between(start, trained, 0.3)
    expected = (0.3 * trained["trained"].double() + 0.7 * start["trained"].double()).float()
    torch.testing.assert_close(found["trained"], expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(found["frozen"], start["frozen"])
    assert found["steps"] == 7


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore:.*WeightAveraging callback")
def test_a_plain_trainer_keeps_and_tests_what_it_scored(tmp_path: Path) -> None:
    callbacks = EMAWeightAveraging(decay=0.9), ValidateFirst()
    learner, data = small_learner(embedder_lr=0.1), small_data(32, steps_per_epoch=2, batch_size=16)
    trainer = small_trainer(*callbacks, max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
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
    trainer = {"callbacks": [BY_STEP], "max_epochs": 3, "accelerator": "cpu"}
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


JOBS = {
    "after each epoch, a frozen trunk": ([BY_EPOCH], {"loss": "ContrastiveLoss", "freeze_trunk": True}),
    "after each step, class weights": ([BY_STEP], {}),
    "from a PCA, which is the best": ([FIRST, BY_STEP], {"embedder_init": "pca", "trunk_lr": 0.1}),
}


@pytest.mark.parametrize("case", JOBS)
def test_the_weights_that_were_scored_are_in_the_checkpoint_of_a_job(case, tmp_path) -> None:
    training = fitted(tmp_path, *JOBS[case])
    best = tmp_path / "best.ckpt"
    assert score(loaded(best), training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert training.best_epoch == -1 or not case.endswith("the best")
    assert torch.load(best, weights_only=True).keys().isdisjoint({"current_model_state", "averaging_state"})
