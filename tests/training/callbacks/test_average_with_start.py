"""The average of start and trained weights: a float64 sum, scored and kept, in each way of training."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import levelfield, torchrun
from lightning.pytorch.callbacks import ModelCheckpoint
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_fit import TINY

from levelfield.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.training.build import build
from levelfield.training.callbacks import AverageWithStart
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner

EMA = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging"}
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


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint's, a frozen trunk's as well."""
    return MetricLearner.load_from_checkpoint(folder / "best.ckpt").state_dict()


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`fits(case)`: a fit that averages nothing, and the weights before the first step: with rates of 0 none moves."""
    made: dict[str, Any] = {}

    def fits(case: str) -> Any:
        if case not in made:
            folder, model = tmp_path_factory.mktemp("fits"), MODELS[case]
            fitted(folder / "still", [], {**model, **STILL})
            made[case] = (fitted(folder / "plain", [], model), folder / "plain", weights(folder / "still"))
        return made[case]

    return fits


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
    assert training.ending == {"steps": 6, "best_step": 6, "alpha": 0.3}


@pytest.mark.parametrize("case", ["a frozen trunk", "from a PCA"])
def test_the_weights_that_were_scored_are_kept(case: str, tmp_path: Path) -> None:
    training = fitted(tmp_path, [FIRST, average(0.3)], MODELS[case])
    learner = MetricLearner.load_from_checkpoint(tmp_path / "best.ckpt")
    assert score(learner, training.datamodule) == pytest.approx(training.best_score, abs=1e-6)


@pytest.mark.parametrize("case", MODELS)
def test_the_best_average_of_the_best_epoch_is_chosen_and_kept(case: str, fits: Any, tmp_path: Path) -> None:
    plain, folder, one = fits(case)
    training, trained = fitted(tmp_path, [average("validated")], MODELS[case]), weights(folder)
    learner = MetricLearner.load_from_checkpoint(folder / "best.ckpt")
    scores = {}
    for alpha in (1.0, 0.75, 0.5, 0.25):
        # Not in float64: of nearly equal similarities the last bit of a weight decides which ranks first.
        learns = [name for name in trained if not name.startswith("loss.") and trained[name].is_floating_point()]
        learner.load_state_dict({**trained, **{n: torch.lerp(one[n], trained[n], alpha) for n in learns}})
        scores[alpha] = score(learner, training.datamodule)
    chosen = training.ending["alpha"]
    assert training.best_score == pytest.approx(max(scores.values()), abs=1e-6)
    assert scores[chosen] == pytest.approx(max(scores.values()), abs=1e-6)
    found = weights(tmp_path)
    assert_near(found, mixed(chosen, one, trained))
    if case == "a frozen trunk":
        assert all(torch.equal(value, one[name]) for name, value in found.items() if name.startswith("trunk."))
    assert score(training.model, training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
    assert (training.best_epoch, training.ending["best_step"]) == (plain.best_epoch, plain.ending["best_step"])
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    last = dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))
    assert (float(last["alpha"]), int(last["epoch"])) == (chosen, training.best_epoch)
    for alpha, expected in scores.items():
        assert float(last[f"val/map_at_r_alpha_{alpha:g}"]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("alpha", [0.5, "validated"])
def test_a_plain_trainer_keeps_what_it_scored(alpha: Any, tmp_path: Path) -> None:
    learner, data = small_learner(embedder_lr=0.1), small_data(32, steps_per_epoch=2, batch_size=16)
    trainer = small_trainer(AverageWithStart(alpha), max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(learner, data)
    best = trainer.checkpoint_callback
    kept = float(best.best_model_score)
    (again,) = trainer.validate(learner, data, ckpt_path="best", verbose=False)
    assert again["val/map_at_r"] == pytest.approx(kept, abs=1e-6)
    assert float(best.best_model_score) == kept, "as the checkpoint has it"


@pytest.mark.usefixtures("quiet")
def test_a_checkpoint_that_stores_nothing_is_left_alone(tmp_path: Path) -> None:
    averages = AverageWithStart()
    stores_nothing = ModelCheckpoint(tmp_path, monitor="val/map_at_r", mode="max", save_top_k=0)
    trainer = small_trainer(averages, stores_nothing, enable_checkpointing=True)
    trainer.fit(small_learner(), small_data(32, steps_per_epoch=1, batch_size=16))
    assert averages.chosen is not None


@pytest.mark.full
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


def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    for alpha in (0.0, 1.5, float("nan"), "best"):
        with pytest.raises(UserError, match=r"AverageWithStart\.alpha"):
            AverageWithStart(alpha)
    with pytest.raises(UserError, match=r"AverageWithStart\.alpha"):
        fitted(tmp_path, [average("validated")], {}, "none")
    with pytest.raises(UserError, match="AverageWithStart"):
        fitted(tmp_path, [average(0.5), EMA], {})
