"""Averages of weights, of start and trained ones and moving ones: those that were scored are kept and tested."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import levelfield, torchrun
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_fit import TINY
from torch.utils.data import DataLoader, TensorDataset
from toy_study import TOY

from levelfield.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.build import build
from levelfield.training.callbacks import AverageWithStart, ValidateFirst
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.learner import MetricLearner
from levelfield.training.plain_module import adapted

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
    learner = loaded(tmp_path / "best.ckpt")
    assert score(learner, training.datamodule) == pytest.approx(training.best_score, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS)
def test_the_best_average_of_the_best_epoch_is_chosen_and_kept(case: str, fits: Any, tmp_path: Path) -> None:
    plain, folder, one = fits(case)
    training, trained = fitted(tmp_path, [average("validated")], MODELS[case]), weights(folder)
    learner = loaded(folder / "best.ckpt")
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
        fitted(tmp_path, [average(0.5), {"class_path": EMA}], {})


EMAS = {
    "after each epoch, a frozen trunk": ([BY_EPOCH], {"loss": "ContrastiveLoss", "freeze_trunk": True}),
    "after each step, class weights": ([BY_STEP], {}),
    "from a PCA, which is the best": ([FIRST, BY_STEP], {"embedder_init": "pca", "trunk_lr": 0.1}),
}


@pytest.mark.parametrize("case", EMAS)
def test_the_weights_that_were_scored_are_in_the_checkpoint_of_a_job(case, tmp_path) -> None:
    training = fitted(tmp_path, *EMAS[case])
    best = tmp_path / "best.ckpt"
    assert score(loaded(best), training.datamodule) == pytest.approx(training.best_score, abs=1e-6)
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
        assert score(loaded(job / "best.ckpt"), data) == expected
        code, printed, complaint = run("validate", "--ckpt_path", job / "best.ckpt")
        assert code == 0, complaint
        assert f"{score(loaded(job / 'best.ckpt'), data):.6f}"[:6] in printed


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore:.*WeightAveraging callback")
def test_a_plain_trainer_tests_what_it_scored(tmp_path) -> None:
    learner, data = small_learner(embedder_lr=0.1), small_data(32, batch_size=16, steps_per_epoch=2)
    averages = EMAWeightAveraging(decay=0.9), ValidateFirst()
    trainer = small_trainer(*averages, max_epochs=3, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(learner, data)
    best = trainer.checkpoint_callback
    assert score(loaded(best.best_model_path), data) == pytest.approx(float(best.best_model_score), abs=1e-6)
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
