"""Averaged weights (EMA): the weights that a checkpoint holds, and that are tested, are those that were scored."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from tiny_fit import TINY
from torch.utils.data import DataLoader, TensorDataset
from toy_study import TOY

from levelfield.losses import ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.build import build
from levelfield.training.callbacks import ValidateFirst
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import adapted

EMA = "lightning.pytorch.callbacks.EMAWeightAveraging"
BY_STEP = {"class_path": EMA, "init_args": {"decay": 0.9}}
BY_EPOCH = {
    "class_path": EMA,
    "init_args": {"decay": 0.5, "update_every_n_steps": 0, "update_starting_at_epoch": 0},
}
FIRST = {"class_path": "levelfield.training.callbacks.ValidateFirst"}
PCA = {"embedder_init": "pca", "trunk_lr": 0.1}
CASES = {
    "after each step": ("ContrastiveLoss", [BY_STEP], {}),
    "after each epoch": ("ContrastiveLoss", [BY_EPOCH], {}),
    "class weights": ("ArcFaceLoss", [BY_STEP], {}),
    "a frozen trunk": ("ContrastiveLoss", [BY_STEP], {"freeze_trunk": True}),
    "from a PCA, which is the best": ("ContrastiveLoss", [FIRST, BY_STEP], PCA),
}


def configuration(loss: str, callbacks: list[dict[str, Any]], model: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(yaml.safe_load(TOY)["base"][0])
    rates = {"trunk_lr": 0.01, "embedder_lr": 0.1}
    config["model"] |= {"loss": {"class_path": f"levelfield.losses.{loss}"}, **rates, **model}
    config["trainer"] |= {"max_epochs": 3, "callbacks": callbacks}
    return config


def scored(checkpoint: Path, data: Any) -> float:
    learner = MetricLearner.load_from_checkpoint(checkpoint)
    data.setup("validate")
    embedded = embed(learner, data.eval_dataloader(data.val_subset))
    return retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]


@pytest.mark.parametrize("case", CASES)
def test_the_weights_that_were_scored_are_in_the_checkpoint_of_a_job(case, tmp_path) -> None:
    training = build(configuration(*CASES[case]), tmp_path, progress=False, trunks=tmp_path / TRUNKS)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    best = tmp_path / "best.ckpt"
    assert scored(best, training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert (training.best_epoch == -1) == case.startswith("from a PCA")
    assert torch.load(best, weights_only=True).keys().isdisjoint({"current_model_state", "averaging_state"})


def test_a_study_tests_the_weights_that_it_selected(run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = yaml.safe_load(TOY) | {"name": "averaged", "runs": 1, "spaces": {"arcface": {}}, "search": {"trials": 1}}
    study["base"][0]["trainer"]["callbacks"] = [BY_STEP]
    study["base"][0]["model"] |= {"trunk_lr": 0.01, "embedder_lr": 0.1}
    study["methods"] = {"arcface": study["methods"]["arcface"]}
    Path("averaged.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    code, _, complaint = run("study", "run", "averaged.yaml")
    assert code == 0, complaint
    jobs = list(Path("outputs/averaged/jobs/arcface/run0").glob("fold*"))
    assert len(jobs) == 2
    for job in jobs:
        result = json.loads((job / "result.json").read_text())
        config = yaml.safe_load((job / "config.yaml").read_text())
        data = build(config, tmp_path / "again", progress=False).datamodule
        assert scored(job / "best.ckpt", data) == pytest.approx(result["validation"]["map_at_r"], abs=1e-6)


def test_a_fit_validates_as_its_checkpoint_does(run, tmp_path) -> None:
    settings = {"trainer": {"callbacks": [BY_STEP]}, "model": {"loss": "ArcFaceLoss", "embedder_lr": 0.1}}
    (tmp_path / "ema.yaml").write_text(yaml.safe_dump(settings))
    assert run("fit", *TINY, "--config", tmp_path / "ema.yaml", "--output", tmp_path)[0] == 0
    folder = tmp_path / "fit" / "Glyphs-ArcFaceLoss" / "0"
    code, printed, complaint = run("validate", "--ckpt_path", folder / "best.ckpt")
    assert code == 0, complaint
    best = max(float(row.split(",")[2]) for row in (folder / "metrics.csv").read_text().splitlines()[1:])
    assert f"{best:.6f}" in printed


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore:.*WeightAveraging callback")
@pytest.mark.parametrize("averaging", [BY_STEP, BY_EPOCH])
def test_a_plain_trainer_tests_what_it_scored(averaging, tmp_path) -> None:
    made = build(configuration("ArcFaceLoss", [], {}), tmp_path / "unused", progress=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    callbacks = [EMAWeightAveraging(**averaging["init_args"]), ValidateFirst()]
    trainer = Trainer(max_epochs=3, default_root_dir=tmp_path, callbacks=callbacks, num_sanity_val_steps=0, **quiet)
    trainer.fit(made.model, made.datamodule)
    best = trainer.checkpoint_callback
    assert scored(best.best_model_path, made.datamodule) == pytest.approx(float(best.best_model_score), abs=1e-6)
    (again,) = trainer.validate(made.model, made.datamodule, ckpt_path="best", verbose=False)
    assert again["val/map_at_r"] == pytest.approx(float(best.best_model_score), abs=1e-6)
    trainer.test(made.model, made.datamodule, ckpt_path="best", verbose=False)
    for name, value in torch.load(best.best_model_path, weights_only=True)["state_dict"].items():
        assert torch.equal(made.model.state_dict()[name], value), name


class Plain(LightningModule):
    """Not a MetricLearner."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(8, 4)

    def training_step(self, batch, batch_idx):
        return ContrastiveLoss()(self.network(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return self.network(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def points_fitted(kind: str, folder: Path, **averaging) -> tuple[dict, list[float], dict]:
    """The trained weights, the scores of 3 epochs of 2 steps, and the weights of the best checkpoint."""
    torch.manual_seed(0)
    module = adapted(Plain()) if kind == "plain" else MetricLearner(
        ModuleTrunk(torch.nn.Identity(), 8), ContrastiveLoss(), embedding_size=4, embedder_lr=0.1
    )  # fmt: skip
    scores = []

    class Scores(Callback):
        def on_validation_end(self, trainer, pl_module) -> None:
            scores.append(float(trainer.callback_metrics["val/map_at_r"]))

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    callbacks = [Scores(), *([EMAWeightAveraging(decay=0.5, **averaging)] if averaging else [])]
    trainer = Trainer(max_epochs=3, default_root_dir=folder, callbacks=callbacks, num_sanity_val_steps=0, **quiet)
    labels = torch.arange(24) // 6
    points = torch.eye(8)[labels] + 0.5 * torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(points, labels), batch_size=12)
    trainer.fit(module, loader, loader)
    best = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    return {name: value.clone() for name, value in module.state_dict().items()}, scores, best["state_dict"]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", ["learner", "plain"])
def test_until_the_average_begins_the_trained_weights_are_scored_and_kept(kind: str, tmp_path) -> None:
    trained, scores, best = points_fitted(kind, tmp_path / "none")
    with pytest.warns(UserWarning, match=r"EMAWeightAveraging averaged nothing in 6 steps") as found:
        never = points_fitted(kind, tmp_path / "never", update_starting_at_step=100)
    assert len([each for each in found if "averaged nothing" in str(each.message)]) == 1
    assert never[1] == scores
    for expected, given in ((trained, never[0]), (best, never[2])):
        assert all(torch.equal(expected[name], given[name]) for name in expected)
    late = points_fitted(kind, tmp_path / "late", update_starting_at_step=4)
    assert late[1][:2] == scores[:2]
    assert any(not torch.equal(trained[name], late[0][name]) for name in trained), "the mean of the last two steps"
