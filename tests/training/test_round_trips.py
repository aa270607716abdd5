"""Each argument of learner, datamodule and loggers: stored, loaded and continued equals made, at both doors."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from lightning.pytorch import Callback, loggers, seed_everything
from lightning.pytorch.loggers.logger import DummyLogger
from own_images import own_images
from plain_lightning import DATA, IMAGES, MODEL, TRAINER, Letters, class_of, made, quiet_trainer, spec

from levelfield import MetricDataModule, MetricLearner
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.data import Glyphs, ImageTransforms
from levelfield.training.build import Training
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
LOGGERS: dict[str, dict[str, Any]] = {
    "CSVLogger": {"name": "mine", "version": 3, "prefix": "it", "flush_logs_every_n_steps": 7},
    "TensorBoardLogger": {
        **{"name": "mine", "version": 3, "log_graph": True, "default_hp_metric": False, "prefix": "it"},
        **{"sub_dir": "below", "max_queue": 3},  # the last one is of tensorboard's writer
    },
    "WandbLogger": {
        **{"name": "mine", "version": "v", "offline": True, "anonymous": True, "id": "abc"},
        **{"log_model": "all", "project": "letters", "prefix": "it", "checkpoint_name": "net"},
        **{"group": "mine", "job_type": "try", "tags": ["a"], "notes": "n", "resume": "must"},  # of wandb.init
        "add_file_policy": "immutable",
    },
}


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


class Fits(NamedTuple):
    """A fit of two epochs with a validation at its end in Python, and the same fit by the command."""

    made: MetricLearner
    data: MetricDataModule
    paths: tuple[Path, Path]
    logged: tuple[dict[str, Any], dict[str, Any]]


def both(folder: Path, model: dict[str, Any], data: dict[str, Any], seed: int) -> Fits:
    trainer = {**TRAINER, "check_val_every_n_epoch": 2}
    Kept.settings = {}
    seed_everything(seed, verbose=False)
    learner, given = MetricLearner(**{name: made(value) for name, value in (BASE | model).items()}), datamodule(**data)
    fitting = quiet_trainer(**trainer, logger=Kept())
    fitting.fit(learner, given)
    fitting.save_checkpoint(folder / "python.ckpt")
    data_logged = Kept.settings.pop("data")
    logged, Kept.settings = {"model": Kept.settings, "data": data_logged}, {}
    data = {"dataset": "plain_lightning.Letters", "transforms": IMAGES, **DATA, "steps_per_epoch": 2, **data}
    of_command = {"trainer": {**trainer, "logger": spec("test_round_trips.Kept")}, "seed_everything": seed}
    parts = [{key: value for key, value in each.items() if key != "seed"} for each in (BASE | model, data)]
    (folder / "it.yaml").write_text(yaml.safe_dump({"model": parts[0], "data": parts[1], **of_command}))
    assert main(["fit", "--config", str(folder / "it.yaml"), "--output", str(folder), "--name", "it"]) == 0
    return Fits(learner, given, (folder / "python.ckpt", folder / "fit/it/0/best.ckpt"), (logged, Kept.settings))


def stored(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def own_seed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "0")  # restored after the tests
        yield


@pytest.fixture(scope="module")
def learners(tmp_path_factory: pytest.TempPathFactory, own_seed: None) -> dict[str, tuple[Fits, Any]]:
    """The fits of each learner, and what the learner made in Python becomes when it trains on."""
    fits = {
        name: both(tmp_path_factory.mktemp("learner"), model, {"seed": model.get("seed", 0)}, model.get("seed", 0))
        for name, model in LEARNERS.items()
    }
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
    python, command = map(stored, fits.paths)
    assert python["state_dict"].keys() == command["state_dict"].keys()
    for key, weight in python["state_dict"].items():
        assert torch.equal(weight, command["state_dict"][key]), key
    for path, content, logged in zip(fits.paths, (python, command), fits.logged, strict=True):
        for argument in LEARNERS[name]:
            assert logged["model"][argument] == content["hyper_parameters"][argument]
        assert trained_on(MetricLearner.load_from_checkpoint(path)) == expected


# Those whose usual value has other weights, and the one that a learner with weights does not use.
OF_OTHER_WEIGHTS = ("trunk", "embedding_size", "loss", "embedder_init")


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
def test_a_datamodule_is_stored_logged_and_loaded_as_it_was_made(
    name: str, own_seed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    head, *rows = own_images(Path("images"), classes=20).read_text().splitlines()
    rows = [f"{row},{number % 76}" for number, row in enumerate(rows)]  # the first and the last class share some
    Path("images/table.csv").write_text("\n".join([f"{head},group", *rows]) + "\n")
    data = DATAMODULES[name]
    fits = both(tmp_path, {"freeze_trunk": name == "features"}, data, data.get("seed", 0))
    expected = batches(fits.data)
    for path, logged in zip(fits.paths, fits.logged, strict=True):
        content = stored(path)["datamodule_hyper_parameters"]
        logged["data"]["dataset"].get("init_args", {}).pop("root", None)
        for argument in data:
            assert content.get(argument, "auto") == OF_A_MACHINE.get(argument, logged["data"][argument]), argument
        words = ["--trust", "plain_lightning", "--trainer.callbacks", "test_round_trips.Caught"]
        words += ["--data.root", "images"] if "root" in data else []
        assert main(["validate", "--ckpt_path", str(path), *words]) == 0
        assert batches(Caught.datamodule) == expected
    seed_everything(0, verbose=False)
    without_effect = {"root", "num_workers", "cache", "features", *(["dataset"] if "root" in data else [])}
    for argument in data.keys() - without_effect:
        left_out = (argument, argument.replace("split", "split_seed"))
        others = {key: value for key, value in data.items() if key not in left_out}
        assert batches(datamodule(**(others | {"num_workers": 0}))) != expected, f"{argument} has an effect"


@pytest.mark.parametrize("kind", LOGGERS)
@pytest.mark.parametrize("door", ["fit", "study"])
def test_a_logger_gets_its_arguments_and_levelfield_s_for_those_left_out(kind: str, door: str, tmp_path: Path) -> None:
    of_run = {"name": "it-0", "group": "it", "job_type": "fit", "resume": "allow"}
    if door == "study":
        of_run |= {"name": "a trial", "group": "letters", "job_type": "trial", "id": "own", "tags": ["b"]}
    ours = {"WandbLogger": of_run, "TensorBoardLogger": {"name": "", "version": ""}, "CSVLogger": {}}[kind]
    each_its_own = ("id", "version") if (kind, door) == ("WandbLogger", "study") else ()
    for number in (0, 1):  # each is given once, and left out once
        folder, names = tmp_path / str(number) / "it/0", [*LOGGERS[kind]][number::2]
        given = {name: LOGGERS[kind][name] for name in names if name not in each_its_own}
        logger = spec(f"lightning.pytorch.loggers.{kind}", save_dir=str(folder), **given)
        data = {"dataset": "plain_lightning.Letters"}
        config = {"model": BASE, "data": data, "trainer": {**TRAINER, "logger": logger}}
        training = Training(config, folder, tracked=of_run if door == "study" else None).build()
        found = flat(training.trainer.loggers[1])
        expected = flat(class_of(logger)(save_dir=str(folder), **(ours | given)))
        assert {key: found[key] for key in expected} == expected


def flat(logger: Any) -> dict[str, Any]:
    """What a logger holds, with its further arguments."""
    held = vars(logger) | getattr(logger, "_wandb_init", {}) | getattr(logger, "_kwargs", {})
    return {key: held[key] for key in held.keys() - {"_fs", "_logged_model_time", "_wandb_init", "_kwargs"}}


def test_no_argument_is_forgotten_above() -> None:
    learner = inspect.signature(MetricLearner).parameters.keys() - {"optimization"}
    assert set().union(*LEARNERS.values()) == learner | inspect.signature(Optimization).parameters.keys()
    assert set().union(*DATAMODULES.values()) == inspect.signature(MetricDataModule).parameters.keys()
    for name, given in LOGGERS.items():
        own = inspect.signature(getattr(loggers, name)).parameters.keys() - {"kwargs"}
        # levelfield sets the folder; no file can hold a begun run.
        assert own - given.keys() <= {"save_dir", "dir", "experiment"}


def test_a_datamodule_is_not_loaded_by_lightning_s_own_method(learners: Any) -> None:
    """It would run code of the file, and give the data set as a dictionary."""
    with pytest.raises(UserError, match=r"load_from_checkpoint.*validate"):
        MetricDataModule.load_from_checkpoint(learners["parts"][0].paths[0])
