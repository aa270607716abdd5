"""One training as a study builds it: trackers, checkpoint, resumed randomness."""

import csv
import os
import subprocess
import sys
from functools import wraps

import pytest
import torch
import wandb
from forked import levelfield, python
from small_fit import small_config
from tiny_fit import TINY

from levelfield.training.build import build


def fit(config: dict, folder, **names):
    training = build(config, folder, progress=False, **names)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    return training


@pytest.mark.full
def test_trackers_are_named_and_grouped_and_a_run_each(tmp_path, monkeypatch):
    started = []
    init = wandb.init

    @wraps(init)  # its arguments are options
    def recording_init(**arguments):
        started.append((arguments["group"], arguments["name"]))
        return init(**arguments)

    monkeypatch.setattr(wandb, "init", recording_init)
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = small_config()
    config["trainer"]["logger"] = [
        {
            "class_path": "lightning.pytorch.loggers.WandbLogger",
            "init_args": {"offline": True, "project": "levelfield"},
        },
        {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "elsewhere"}},
    ]
    for fold in "01":
        fit(config, tmp_path / fold, tracked={"group": "a study", "name": f"contrastive run 0 fold {fold}"})
    assert started == [("a study", "contrastive run 0 fold 0"), ("a study", "contrastive run 0 fold 1")]
    for fold in "01":
        assert len(list((tmp_path / fold / "wandb").glob("offline-run-*"))) == 1
        assert len(list((tmp_path / fold).glob("events.out.tfevents.*"))) == 1
        assert (tmp_path / fold / "metrics.csv").exists()


def test_the_checkpoint_of_a_job_is_the_best_epoch_and_holds_weights_alone(tmp_path):
    training = fit(small_config(), tmp_path)
    with open(tmp_path / "metrics.csv") as file:
        scores = [float(row["val/map_at_r"]) for row in csv.DictReader(file) if row["val/map_at_r"]]
    assert training.best_score == pytest.approx(max(scores), abs=1e-7)
    assert training.best_epoch == scores.index(max(scores))
    assert "optimizer_states" not in torch.load(tmp_path / "best.ckpt", weights_only=True)


def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path):
    weights = []
    for number, seed in enumerate([3, 3, 4]):
        torch.manual_seed(number)  # whatever happened before in this process
        training = fit({**small_config(), "seed_everything": seed}, tmp_path / str(number))
        weights.append(torch.cat([value.flatten() for value in training.model.state_dict().values()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_miner_is_known_by_its_short_name():
    words = [*TINY, "--model.loss", "TripletMarginLoss", "--model.miner", "DistanceWeightedMiner", "--print_config"]
    ended = python(*levelfield("fit", *words))
    assert ended.returncode == 0, ended.stderr
    assert "class_path: levelfield.miners.DistanceWeightedMiner" in ended.stdout


@pytest.mark.processes
def test_a_real_start_of_the_command_fits_and_a_profiler_prints_its_report(tmp_path):
    words = [*TINY, "--data.dataset.num_classes", "24", "--trainer.profiler", "simple", "--output", str(tmp_path)]
    command = [sys.executable, *map(str, levelfield("fit", *words, "--model.loss", "ContrastiveLoss"))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert "run_training_epoch" in done.stdout + done.stderr
    assert (tmp_path / "fit/Glyphs-ContrastiveLoss/0/best.ckpt").exists()


def test_a_deterministic_training_does_not_fill_the_memory_that_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    training = fit(small_config(), tmp_path)
    assert torch.are_deterministic_algorithms_enabled()
    assert training.trainer.global_step == 4
    assert not torch.utils.deterministic.fill_uninitialized_memory
