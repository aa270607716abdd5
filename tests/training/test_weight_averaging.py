"""Averaged weights (EMA): the weights that a checkpoint holds, and that are tested, are those that were scored."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EMAWeightAveraging
from small_fit import small_config, small_data, small_learner, small_trainer
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
OF_EPOCHS = {"decay": 0.5, "update_every_n_steps": 0, "update_starting_at_epoch": 0}
BY_STEP, BY_EPOCH = ({"class_path": EMA, "init_args": each} for each in ({"decay": 0.9}, OF_EPOCHS))
FIRST = {"class_path": "levelfield.training.callbacks.ValidateFirst"}
CASES = {
    "after each epoch, a frozen trunk": ([BY_EPOCH], {"loss": "ContrastiveLoss", "freeze_trunk": True}),
    "after each step, class weights": ([BY_STEP], {}),
    "from a PCA, which is the best": ([FIRST, BY_STEP], {"embedder_init": "pca", "trunk_lr": 0.1}),
}


def scored(checkpoint: Path, data: Any) -> float:
    learner = MetricLearner.load_from_checkpoint(checkpoint)
    data.setup("validate")
    embedded = embed(learner, data.eval_dataloader(data.val_subset))
    return retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]


@pytest.mark.parametrize("case", CASES)
def test_the_weights_that_were_scored_are_in_the_checkpoint_of_a_job(case, tmp_path) -> None:
    callbacks, model = CASES[case]
    rates = {"loss": "ArcFaceLoss", "trunk_lr": 0.01, "embedder_lr": 0.1}
    config = small_config(model=rates | model, trainer={"max_epochs": 3, "callbacks": callbacks})
    training = build(config, tmp_path, progress=False, trunks=tmp_path / TRUNKS)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    best = tmp_path / "best.ckpt"
    assert scored(best, training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert (training.best_epoch == -1) == case.startswith("from a PCA")
    assert torch.load(best, weights_only=True).keys().isdisjoint({"current_model_state", "averaging_state"})


@pytest.mark.full
def test_a_study_tests_the_weights_that_it_selected(run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = yaml.safe_load(TOY) | {"name": "averaged", "runs": 1}
    del study["spaces"], study["search"]
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
        expected = pytest.approx(result["validation"]["map_at_r"], abs=1e-6)
        assert scored(job / "best.ckpt", data) == expected
        code, printed, complaint = run("validate", "--ckpt_path", job / "best.ckpt")
        assert code == 0, complaint
        assert f"{scored(job / 'best.ckpt', data):.6f}"[:6] in printed


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore:.*WeightAveraging callback")
def test_a_plain_trainer_tests_what_it_scored(tmp_path) -> None:
    learner, data = small_learner(embedder_lr=0.1), small_data(32, batch_size=16, steps_per_epoch=2)
    averages = EMAWeightAveraging(decay=0.9), ValidateFirst()
    trainer = small_trainer(*averages, max_epochs=3, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(learner, data)
    best = trainer.checkpoint_callback
    assert scored(best.best_model_path, data) == pytest.approx(float(best.best_model_score), abs=1e-6)
    (again,) = trainer.validate(learner, data, ckpt_path="best", verbose=False)
    assert again["val/map_at_r"] == pytest.approx(float(best.best_model_score), abs=1e-6)
    trainer.test(learner, data, ckpt_path="best", verbose=False)
    for name, value in torch.load(best.best_model_path, weights_only=True)["state_dict"].items():
        assert torch.equal(learner.state_dict()[name], value), name


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


class Scores(Callback):
    def __init__(self) -> None:
        self.kept = []

    def on_validation_end(self, trainer, pl_module) -> None:
        self.kept.append(float(trainer.callback_metrics["val/map_at_r"]))


def points_fitted(kind: str, folder: Path, **averaging) -> tuple[dict, list[float], dict]:
    """The trained weights, the scores of 3 epochs of 2 steps, and the weights of the best checkpoint."""
    torch.manual_seed(0)
    trunk = ModuleTrunk(torch.nn.Identity(), 8)
    of_points = {"embedding_size": 4, "embedder_lr": 0.1, "trunk": trunk}
    module = adapted(Plain()) if kind == "plain" else small_learner(ContrastiveLoss(), **of_points)
    scores, averages = Scores(), [EMAWeightAveraging(decay=0.5, **averaging)] if averaging else []
    trainer = small_trainer(scores, *averages, max_epochs=3, default_root_dir=folder, enable_checkpointing=True)
    labels = torch.arange(24) // 6
    points = torch.eye(8)[labels] + 0.5 * torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(points, labels), batch_size=12)
    trainer.fit(module, loader, loader)
    best = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    return {name: value.clone() for name, value in module.state_dict().items()}, scores.kept, best["state_dict"]


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
