"""One configuration gives the same weights at each door: Trainer.fit, `levelfield fit`, a study's job.

What must not matter: loader processes, cache, the epoch at which a fit resumes, and earlier draws of the process.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from own_images import noise_images
from plain_lightning import MODEL, TRAINER, made, spec

from levelfield import MetricDataModule, MetricLearner
from levelfield.cli.main import main
from levelfield.core.seeds import seed_of
from levelfield.data import ImageTransforms
from levelfield.study import seal
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from levelfield.study.run import run_study

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, of tiny fits

EPOCHS = 3
Config = dict[str, Any]
MODEL_OF_ALL = {
    **{"trunk": spec("plain_lightning.Pooled"), **MODEL, "optimizer": spec("torch.optim.SGD", momentum=0.9)},
    "loss": spec("levelfield.losses.ArcFaceLoss", class_fraction=0.6),
    "embedder": spec("levelfield.models.MLPEmbedder", hidden_sizes=[8], dropout=0.5),
    "regularizer": spec("levelfield.regularizers.KoLeo", weight=0.3),
    "lr_scheduler": spec("torch.optim.lr_scheduler.CosineAnnealingLR", T_max=5),
    "lr_scheduler_interval": "step",
}
TRAINER_OF_ALL = {
    **{**TRAINER, "max_epochs": EPOCHS, "check_val_every_n_epoch": EPOCHS},  # the best epoch is the last
    **{"accumulate_grad_batches": 2, "gradient_clip_val": 0.05},
}
PLACES = [{"num_workers": 0, "cache": True}, {"num_workers": 1, "cache": False}]  # of one door, and of the other


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(noise_images(tmp_path_factory.mktemp("images"), 96, samples=6, height=20, width=24, suffix=".png"))


@pytest.fixture(autouse=True)
def own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored after the test


def config_of(table: str, place: int, **data: Any) -> Config:
    """The configuration for a door, which reads the images in its way, after draws of its own."""
    for draw in (torch.rand, np.random.rand):
        draw(1 + 3 * place)
    dataset = spec("levelfield.data.datasets.ImageTable", table=table)
    given = {"dataset": dataset, "transforms": {"crop_size": 16, "resize": 18, "scale": [0.3, 1.0]}}
    given |= {"sampler": "levelfield.data.samplers.ShuffledBatchSampler", "split": "random", "num_folds": 2}
    given |= {"batch_size": 8, "steps_per_epoch": 2, "eval_batch_size": 7, **PLACES[place], **data}
    return {"model": MODEL_OF_ALL, "data": given, "trainer": TRAINER_OF_ALL}


def in_python(config: Config, folder: Path, seed: int = 0, resumed_after: int = 0) -> Config:
    """The weights after `Trainer.fit`, which another Trainer may go on with."""

    def parts(epochs: int) -> tuple[Trainer, MetricLearner, MetricDataModule]:
        seed_everything(seed, verbose=False)
        model = {key: made(value) for key, value in config["model"].items()}
        data = {key: made(value) for key, value in config["data"].items()}
        data |= {"sampler": made(spec(data["sampler"])), "transforms": ImageTransforms(**data["transforms"])}
        keep = ModelCheckpoint(folder / "kept", save_top_k=-1, save_on_train_epoch_end=True, filename="{epoch}")
        quiet = {"logger": False, "callbacks": [keep], "default_root_dir": folder, "max_epochs": epochs}
        return Trainer(**(config["trainer"] | quiet)), MetricLearner(**model), MetricDataModule(**data)

    trainer, learner, data = parts(resumed_after or EPOCHS)
    trainer.fit(learner, data)
    if resumed_after:
        trainer, learner, data = parts(EPOCHS)
        trainer.fit(learner, data, ckpt_path=folder / f"kept/epoch={resumed_after - 1}.ckpt", weights_only=True)
    return learner.state_dict()


def by_command(config: Config, folder: Path) -> Config:
    """The weights in the checkpoint of `levelfield fit`."""
    folder.mkdir(exist_ok=True)
    (folder / "it.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "--config", str(folder / "it.yaml"), "--output", str(folder), "--name", "it"]) == 0
    return weights(folder / "fit/it/0/best.ckpt")


def weights(path: Path) -> Config:
    return MetricLearner.load_from_checkpoint(path).state_dict()


def assert_same(found: Config, expected: Config) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(*map(torch.as_tensor, (found[name], weight))), name


def test_the_command_trains_what_python_trains(table: str, tmp_path: Path) -> None:
    expected = in_python(config_of(table, 0), tmp_path, resumed_after=1)
    assert_same(by_command(config_of(table, 1), tmp_path), expected)


@pytest.mark.slow
def test_a_study_s_jobs_train_what_python_and_the_command_train(table: str, tmp_path, monkeypatch) -> None:
    text = {"base": [config_of(table, 0)], "methods": {"it": {}}, "folds": 2, "runs": 1, "threads": 1}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    monkeypatch.setattr(seal, "evaluate", lambda *_, **__: sys.exit("before the evaluation"))
    with pytest.raises(SystemExit):
        run_study(StudyFolder(tmp_path / "out", load_spec(tmp_path / "study.yaml", {})))
    for fold in (0, 1):
        job, config = tmp_path / f"out/jobs/it/run0/fold{fold}", config_of(table, 1, fold=fold)
        expected = in_python(config, tmp_path / str(fold), seed=seed_of(0, "run", 0, bits=32))
        assert_same(weights(job / "best.ckpt"), expected)
    assert_same(by_command(yaml.safe_load((job / "config.yaml").read_text()), tmp_path / "again"), expected)
    assert (tmp_path / "again/fit/it/0/metrics.csv").read_bytes() == (job / "metrics.csv").read_bytes()
