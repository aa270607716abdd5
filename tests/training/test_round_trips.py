"""Each argument of learner and datamodule: stored, loaded and continued equals made, at both doors."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers.logger import DummyLogger
from own_images import own_images
from plain_lightning import DATA, IMAGES, MODEL, TRAINER, Letters, made, quiet_trainer, spec

from levelfield import MetricDataModule, MetricLearner
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.data import Glyphs, ImageTransforms
from levelfield.study import seal
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from levelfield.study.run import run_study
from levelfield.training.optimization import Optimization

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, of tiny fits

TIMM = spec("levelfield.models.TimmTrunk", name="test_resnet", weights=None)
STEP_LR = spec("torch.optim.lr_scheduler.StepLR", step_size=1, gamma=0.1)
TRIPLETS = spec("levelfield.losses.TripletMarginLoss", margin=0.3)
FACE = spec("levelfield.losses.ArcFaceLoss", margin=5.0, class_fraction=0.8)
BASE = {"trunk": spec("plain_lightning.Pooled"), "loss": spec("levelfield.losses.ArcFaceLoss"), **MODEL}
# Another value of each argument, in as few learners as have an effect of all.
LEARNERS: dict[str, dict[str, Any]] = {
    "rates": {
        **{"trunk": TIMM, "layer_decay": 0.5, "freeze_batch_norm": False, "trunk_lr": 0.1, "weight_decay": 0.5},
        **{"loss": FACE, "loss_lr": 0.3, "loss_weight_decay": 0.5, "optimizer": spec("torch.optim.SGD", momentum=0.9)},
        **{"lr_scheduler": STEP_LR, "lr_scheduler_interval": "step", "seed": 1},
    },
    "parts": {
        **{"loss": TRIPLETS, "miner": spec("levelfield.miners.BatchHardMiner"), "embedder_lr": 0.2},
        **{"regularizer": spec("levelfield.regularizers.KoLeo", weight=0.5), "normalize": False},
        **{"distance": "euclidean", "embedder": spec("levelfield.models.LinearEmbedder", dropout=0.5)},
    },
    "a start": {"freeze_trunk": True, "embedder_init": "pca", "embedding_size": 4},
}
SHUFFLED = spec("levelfield.data.ShuffledBatchSampler")
TABLE = spec("levelfield.data.datasets.ImageTable", table="table.csv")
DATAMODULES: dict[str, dict[str, Any]] = {
    "M per class": {
        **{"dataset": spec("test_round_trips.Few", num_classes=20), "fold": 1, "num_folds": 2},
        **{"split": "random", "split_seed": 3, "fold_seed": 5},
        **{"batch_size": 16, "samples_per_class": 4, "replacement": True},
        **{"steps_per_epoch": 3, "eval_batch_size": 7, "num_workers": 1, "transforms": {**IMAGES, "scale": [0.5, 1.0]}},
        "seed": 1,
    },
    "images": {"dataset": TABLE, "root": "images", "cache": True, "sampler": SHUFFLED, "keep_groups": True},
    "features": {"features": True},
}
# They change no batch, and a checkpoint has no folder of the data and no number of processes.
OF_A_MACHINE = {"root": None, "num_workers": "auto"}
# Those whose usual value has other weights, and the one that a learner with weights does not use.
OF_OTHER_WEIGHTS = ("trunk", "embedding_size", "loss", "embedder_init")


class Few(Glyphs):
    load = Letters.load  # which draws each letter once


class Kept(DummyLogger):
    """A logger that keeps the settings that it gets."""

    settings: dict[str, Any]

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        Kept.settings |= dict(params or {})


class Caught(Callback):
    """Keeps the datamodule of a command."""

    datamodule: MetricDataModule

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        Caught.datamodule = trainer.datamodule


def datamodule(**arguments: Any) -> MetricDataModule:
    given = {"dataset": spec("plain_lightning.Letters"), **DATA, "steps_per_epoch": 2, **arguments}
    given["transforms"] = ImageTransforms(**given.get("transforms", IMAGES))
    return MetricDataModule(**{name: made(value) for name, value in given.items()})


def both(folder: Path, model: dict[str, Any], data: dict[str, Any], seed: int) -> SimpleNamespace:
    """A fit of two epochs with a validation at its end in Python, and the same fit by the command."""
    trainer = {**TRAINER, "check_val_every_n_epoch": 2}
    Kept.settings = {}
    seed_everything(seed, verbose=False)
    learner = MetricLearner(**{name: made(value) for name, value in (BASE | model).items()})
    given, fitting = datamodule(**data), quiet_trainer(**trainer, logger=Kept())
    fitting.fit(learner, given)
    fitting.save_checkpoint(folder / "python.ckpt")
    data_logged = Kept.settings.pop("data")
    logged, Kept.settings = {"model": Kept.settings, "data": data_logged}, {}
    data = {"dataset": "plain_lightning.Letters", "transforms": IMAGES, **DATA, "steps_per_epoch": 2, **data}
    of_command = {"trainer": {**trainer, "logger": spec("test_round_trips.Kept")}, "seed_everything": seed}
    parts = [{key: value for key, value in each.items() if key != "seed"} for each in (BASE | model, data)]
    (folder / "it.yaml").write_text(yaml.safe_dump({"model": parts[0], "data": parts[1], **of_command}))
    assert main(["fit", "--config", str(folder / "it.yaml"), "--output", str(folder), "--name", "it"]) == 0
    paths, logs = (folder / "python.ckpt", folder / "fit/it/0/best.ckpt"), (logged, Kept.settings)
    return SimpleNamespace(made=learner, data=given, paths=paths, logged=logs)


@pytest.fixture(scope="module", autouse=True)
def own_seed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "0")  # restored after the tests
        yield


@pytest.fixture(scope="module")
def learners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[SimpleNamespace, Any]]:
    """The fits of each learner, and what the learner made in Python becomes when it trains on."""
    folders = {name: tmp_path_factory.mktemp("learner") for name in LEARNERS}
    fits = {name: both(folders[name], model, {}, model.get("seed", 0)) for name, model in LEARNERS.items()}
    return {name: (each, trained_on(each.made)) for name, each in fits.items()}


def trained_on(learner: MetricLearner) -> tuple[list[float], float]:
    """The weights after a fit, and their score."""
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(learner, datamodule(seed=0))
    weights = torch.cat([weight.detach().flatten() for weight in learner.parameters()])
    return weights.tolist(), float(trainer.callback_metrics["val/map_at_r"])


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_is_stored_logged_loaded_and_trained_on_as_it_was_made(name: str, learners: Any) -> None:
    fits, expected = learners[name]
    python, command = (torch.load(path, weights_only=True) for path in fits.paths)
    assert python["state_dict"].keys() == command["state_dict"].keys()
    for key, weight in python["state_dict"].items():
        assert torch.equal(weight, command["state_dict"][key]), key
    for path, content, logged in zip(fits.paths, (python, command), fits.logged, strict=True):
        assert "num_workers" not in content["datamodule_hyper_parameters"]
        for argument in LEARNERS[name]:
            assert logged["model"][argument] == content["hyper_parameters"][argument]
        assert trained_on(MetricLearner.load_from_checkpoint(path)) == expected


@pytest.mark.parametrize(
    ("name", "argument"), [(name, each) for name in LEARNERS for each in LEARNERS[name] if each not in OF_OTHER_WEIGHTS]
)
def test_an_argument_of_a_learner_given_at_loading_has_an_effect(name: str, argument: str, learners: Any) -> None:
    fits, expected = learners[name]
    taken = inspect.signature(MetricLearner).parameters | inspect.signature(Optimization).parameters
    usual = (MODEL | {"seed": 0}).get(argument, taken[argument].default)
    assert trained_on(MetricLearner.load_from_checkpoint(fits.paths[0], **{argument: usual})) != expected


def batches(data: MetricDataModule) -> list[Any]:
    """All that a datamodule yields to train and to validate."""
    data.trainer = None
    data.setup("fit")
    loaders = [data.train_dataloader(), data.val_dataloader()]
    found = [list(batch.values() if isinstance(batch, dict) else batch) for each in loaders for batch in each]
    return [[part.tolist() for part in batch] for batch in found]


@pytest.mark.processes
@pytest.mark.parametrize("name", DATAMODULES)
def test_a_datamodule_is_stored_logged_and_loaded_as_it_was_made(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    head, *rows = own_images(Path("images"), classes=20).read_text().splitlines()
    rows = [f"{row},{number % 76}" for number, row in enumerate(rows)]  # the first and the last class share some
    Path("images/table.csv").write_text("\n".join([f"{head},group", *rows]) + "\n")
    data = DATAMODULES[name]
    fits = both(tmp_path, {"freeze_trunk": name == "features"}, data, data.get("seed", 0))
    expected = batches(fits.data)
    for path, logged in zip(fits.paths, fits.logged, strict=True):
        content = torch.load(path, weights_only=True)["datamodule_hyper_parameters"]
        logged["data"]["dataset"].get("init_args", {}).pop("root", None)
        for argument in data:
            assert content.get(argument, "auto") == OF_A_MACHINE.get(argument, logged["data"][argument]), argument
        words = ["--trust", "plain_lightning", "--trainer.callbacks", "test_round_trips.Caught"]
        words += ["--data.root", "images"] if "root" in data else []
        assert main(["validate", "--ckpt_path", str(path), *words]) == 0
        assert batches(Caught.datamodule) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rates", "a start"])
def test_a_study_s_job_trains_what_the_command_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With loader processes, without a cache, and after other draws; whether or not the jobs can share a trunk."""
    data = {"dataset": TABLE, "root": "images", "transforms": {**IMAGES, "scale": [0.3, 1.0]}, **DATA, "num_folds": 2}
    model = {key: value for key, value in {**BASE, "trunk": TIMM, **LEARNERS[name]}.items() if key != "seed"}
    base = {"model": model, "data": data, "trainer": {**TRAINER, "gradient_clip_val": 0.05}}
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    own_images(Path("images"), classes=20)
    study = {"base": [base], "methods": {"it": {}}, "folds": 2, "runs": 1, "threads": 1}
    Path("study.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.setattr(seal, "evaluate", lambda *_, **__: sys.exit("before the evaluation"))
    with pytest.raises(SystemExit):
        run_study(StudyFolder(tmp_path / "out", load_spec(Path("study.yaml"), {})))
    torch.rand(3)
    for fold in (0, 1):
        job = tmp_path / f"out/jobs/it/run0/fold{fold}"
        words = f"--config {job}/config.yaml --data.root images --data.num_workers 1 --data.cache false".split()
        assert main(["fit", *words, "--output", "again", "--name", f"it{fold}"]) == 0
        found = Path(f"again/fit/it{fold}/0")
        assert (found / "metrics.csv").read_bytes() == (job / "metrics.csv").read_bytes()
        one, other = (MetricLearner.load_from_checkpoint(each / "best.ckpt").state_dict() for each in (found, job))
        assert one.keys() == other.keys()
        for key, weight in one.items():
            assert torch.equal(weight, other[key]), key


def test_no_argument_is_forgotten_above() -> None:
    learner = inspect.signature(MetricLearner).parameters.keys() - {"optimization"}
    assert set().union(*LEARNERS.values()) == learner | inspect.signature(Optimization).parameters.keys()
    assert set().union(*DATAMODULES.values()) == inspect.signature(MetricDataModule).parameters.keys()


def test_a_datamodule_is_not_loaded_by_lightning_s_own_method(learners: Any) -> None:
    """It would run code of the file, and give the data set as a dictionary."""
    with pytest.raises(UserError, match=r"load_from_checkpoint.*validate"):
        MetricDataModule.load_from_checkpoint(learners["parts"][0].paths[0])
