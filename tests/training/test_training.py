"""One training as a study builds it: trackers, checkpoint, resumed randomness."""

import csv
import os
import subprocess
import sys

import pytest
import torch
from forked import levelfield
from small_fit import small_config
from tiny_fit import TINY

from levelfield.training.build import build


def fit(config: dict, folder, **names):
    training = build(config, folder, progress=False, **names)
    training.trainer.fit(training.model, datamodule=training.datamodule)
    return training


def test_the_checkpoint_of_a_job_is_the_best_epoch_and_holds_weights_alone(tmp_path):
    training = fit(small_config(), tmp_path)
    with open(tmp_path / "metrics.csv") as file:
        scores = [float(row["val/map_at_r"]) for row in csv.DictReader(file) if row["val/map_at_r"]]
    assert training.best_score == pytest.approx(max(scores), abs=1e-7)
    assert training.best_epoch == scores.index(max(scores))
    assert "optimizer_states" not in torch.load(tmp_path / "best.ckpt", weights_only=True)


@pytest.mark.processes
def test_a_real_start_of_the_command_knows_short_names_and_a_profiler_prints_its_report(tmp_path):
    more = "--model.loss TripletMarginLoss --model.miner DistanceWeightedMiner --data.dataset.num_classes 24"
    words = [*TINY, *more.split(), "--trainer.profiler", "simple", "--output", tmp_path]
    command = [sys.executable, *map(str, levelfield("fit", *words))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert "run_training_epoch" in done.stdout + done.stderr
    assert (tmp_path / "fit/Glyphs-TripletMarginLoss/0/best.ckpt").exists()


def test_a_deterministic_training_does_not_fill_the_memory_that_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    training = fit(small_config(), tmp_path)
    assert torch.are_deterministic_algorithms_enabled()
    assert training.trainer.global_step == 4
    assert not torch.utils.deterministic.fill_uninitialized_memory
