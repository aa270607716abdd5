"""The average of start and trained weights: a float64 sum, scored and kept, after a stop and on two processes too."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import levelfield, torchrun
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_fit import TINY
from toy_study import TOY

from levelfield.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.training.build import build
from levelfield.training.callbacks import AverageWithStart
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner

AVERAGE = "levelfield.training.callbacks.AverageWithStart"
EMA = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging"}
FIRST = {"class_path": "levelfield.training.callbacks.ValidateFirst"}
MODELS = {
    "trained": {"freeze_batch_norm": False},
    "a frozen trunk": {"freeze_trunk": True},
    "from a PCA": {"embedder_init": "pca"},
}


def average(alpha: Any) -> dict[str, Any]:
    return {"class_path": AVERAGE, "init_args": {"alpha": alpha}}


def configuration(callbacks: list[dict[str, Any]], model: dict[str, Any], fold: Any = 0) -> dict[str, Any]:
    config = copy.deepcopy(yaml.safe_load(TOY)["base"][0])
    config["model"] |= {"loss": "ArcFaceLoss", "trunk_lr": 0.01, "embedder_lr": 0.1, **model}
    config["trainer"] |= {"max_epochs": 4, "callbacks": callbacks}
    config["data"]["fold"] = fold
    return config


def fitted(folder: Path, *arguments: Any) -> Any:
    training = build(configuration(*arguments), folder, progress=False, trunks=folder / TRUNKS)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    return training


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint's, a frozen trunk's as well."""
    return MetricLearner.load_from_checkpoint(folder / "best.ckpt").state_dict()


def start(folder: Path, model: dict[str, Any], fold: Any) -> dict[str, torch.Tensor]:
    """The weights before the first step: with rates of 0 none moves."""
    still = {"trunk_lr": 0.0, "embedder_lr": 0.0, "weight_decay": 0.0, "freeze_batch_norm": True}
    fitted(folder, [], {**model, **still}, fold)
    return weights(folder)


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


@pytest.mark.parametrize("case", MODELS)
def test_a_number_keeps_that_average_of_the_last_epoch(case: str, tmp_path: Path) -> None:
    """The steps are those of a training that averages nothing."""
    model = MODELS[case]
    fitted(tmp_path / "plain", [], model, "none")
    training = fitted(tmp_path / "mixed", [average(0.3)], model, "none")
    one, trained = start(tmp_path / "start", model, "none"), weights(tmp_path / "plain")
    assert not torch.equal(one["embedder.linear.weight"], trained["embedder.linear.weight"])
    found = weights(tmp_path / "mixed")
    assert_near(found, mixed(0.3, one, trained))
    if case == "a frozen trunk":
        assert all(torch.equal(value, one[name]) for name, value in found.items() if name.startswith("trunk."))
    assert training.ending == {"steps": 8, "best_step": 8, "alpha": 0.3}


@pytest.mark.parametrize("alpha", [0.3, "validated"])
@pytest.mark.parametrize("case", MODELS)
def test_the_weights_that_were_scored_are_kept(case: str, alpha: Any, tmp_path: Path) -> None:
    training = fitted(tmp_path, [FIRST, average(alpha)], MODELS[case])
    learner = MetricLearner.load_from_checkpoint(tmp_path / "best.ckpt")
    assert score(learner, training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert score(training.model, training.datamodule) == pytest.approx(training.best_score, abs=1e-6) or alpha == 0.3


@pytest.mark.parametrize("case", MODELS)
def test_the_best_average_of_the_best_epoch_is_chosen(case: str, tmp_path: Path) -> None:
    model = MODELS[case]
    plain = fitted(tmp_path / "plain", [], model)
    training = fitted(tmp_path / "mixed", [average("validated")], model)
    one, trained = start(tmp_path / "start", model, 0), weights(tmp_path / "plain")
    learner = MetricLearner.load_from_checkpoint(tmp_path / "plain" / "best.ckpt")
    scores = {}
    for alpha in (1.0, 0.75, 0.5, 0.25):
        # Not in float64: of nearly equal similarities the last bit of a weight decides which ranks first.
        learns = [name for name in trained if not name.startswith("loss.") and trained[name].is_floating_point()]
        learner.load_state_dict({**trained, **{n: torch.lerp(one[n], trained[n], alpha) for n in learns}})
        scores[alpha] = score(learner, training.datamodule)
    chosen = training.ending["alpha"]
    assert training.best_score == pytest.approx(max(scores.values()), abs=1e-6)
    assert scores[chosen] == pytest.approx(max(scores.values()), abs=1e-6)
    assert_near(weights(tmp_path / "mixed"), mixed(chosen, one, trained))
    assert (training.best_epoch, training.ending["best_step"]) == (plain.best_epoch, plain.ending["best_step"])
    rows = (tmp_path / "mixed" / "metrics.csv").read_text().splitlines()
    last = dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))
    assert (float(last["alpha"]), int(last["epoch"])) == (chosen, training.best_epoch)
    for alpha, expected in scores.items():
        assert float(last[f"val/map_at_r_alpha_{alpha:g}"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("alpha", [0.5, "validated"])
def test_a_plain_trainer_keeps_what_it_scored(alpha: Any, tmp_path: Path) -> None:
    made = build(configuration([], {}), tmp_path / "unused", progress=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    callbacks = [AverageWithStart(alpha)]
    trainer = Trainer(max_epochs=3, default_root_dir=tmp_path, callbacks=callbacks, num_sanity_val_steps=0, **quiet)
    trainer.fit(made.model, made.datamodule)
    best = trainer.checkpoint_callback
    kept = float(best.best_model_score)
    (again,) = trainer.validate(made.model, made.datamodule, ckpt_path="best", verbose=False)
    assert again["val/map_at_r"] == pytest.approx(kept, abs=1e-6)
    assert float(best.best_model_score) == kept, "as the checkpoint has it"


@pytest.mark.usefixtures("quiet")
def test_a_checkpoint_that_stores_nothing_is_left_alone(tmp_path: Path) -> None:
    made = build(configuration([], {}), tmp_path / "unused", progress=False)
    stores_nothing = ModelCheckpoint(tmp_path, monitor="val/map_at_r", mode="max", save_top_k=0)
    averages = AverageWithStart()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    Trainer(max_epochs=1, callbacks=[averages, stores_nothing], **quiet).fit(made.model, made.datamodule)
    assert averages.chosen is not None


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_choose_and_keep_the_same(tmp_path: Path) -> None:
    settings = {"trainer": {"callbacks": [average("validated")], "max_epochs": 3}}
    # Adam turns the last bits of small gradients into steps of full length.
    settings["model"] = {"optimizer": "torch.optim.SGD", "embedder_lr": 0.1}
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(settings))
    words = [*TINY, "--config", str(tmp_path / "fit.yaml"), "--model.loss", "ContrastiveLoss"]
    words += ["--trainer.accelerator", "cpu", "--data.steps_per_epoch", "4"]
    two = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    for name, more, count in (("one", [], 1), ("two", two, 2)):
        for done in torchrun(*levelfield("fit", *words, *more, "--name", name), folder=tmp_path, num_processes=count):
            assert done.returncode == 0, done.stderr
    one, two = (tmp_path / "outputs" / "fit" / name / "0" for name in ("one", "two"))
    rows = [(folder / "metrics.csv").read_text().splitlines() for folder in (one, two)]
    alphas = [dict(zip(each[0].split(","), each[-1].split(","), strict=True))["alpha"] for each in rows]
    assert alphas[0] == alphas[1] != ""
    found = [weights(folder) for folder in (one, two)]
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("alpha", [0.0, 1.5, -1.0, float("nan"), "best"])
def test_refused_alphas(alpha: Any) -> None:
    with pytest.raises(UserError, match=r"AverageWithStart\.alpha"):
        AverageWithStart(alpha)


def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"AverageWithStart\.alpha"):
        build(configuration([average("validated")], {}, "none"), tmp_path, progress=False)
    with pytest.raises(UserError, match="AverageWithStart"):
        fitted(tmp_path, [average(0.5), EMA], {})
