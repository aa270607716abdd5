"""One training as the command starts it or a study builds it, and how many files a reader opens for it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import Forked, children, levelfield
from lightning.pytorch.callbacks import LambdaCallback
from one_fails import WAIT_SECONDS
from small_fit import small_config, small_trainer
from tiny_fit import TINY
from torch import arange, nn, rand
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.processes import is_running
from levelfield.losses import ContrastiveLoss
from levelfield.training import build as builder
from levelfield.training.build import Training
from levelfield.training.learner import MetricLearner


@pytest.mark.processes
def test_a_real_start_of_the_command_knows_short_names_and_a_profiler_prints_its_report(tmp_path):
    more = "--model.loss TripletMarginLoss --model.miner DistanceWeightedMiner --data.dataset.num_classes 24"
    words = [*TINY, *more.split(), "--trainer.profiler", "simple", "--output", tmp_path]
    command = [sys.executable, *map(str, levelfield("fit", *words))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert "run_training_epoch" in done.stdout + done.stderr
    assert (tmp_path / "fit/Glyphs-TripletMarginLoss/0/best.ckpt").exists()


@pytest.mark.parametrize("given", [1, 1.0, 0.5, 0])
def test_one_batch_is_not_all_batches(given, tmp_path) -> None:
    """typing gives `Union[int, float, None]` as the union of these that was made first, and so does a Trainer's."""
    found = Training(small_config(trainer={"limit_train_batches": given}), tmp_path).config.trainer.limit_train_batches
    assert (type(found), found) == (type(given), given)


@pytest.mark.processes
@pytest.mark.parametrize(("command", "rank"), [("fit", 1), pytest.param("validate", 0, marks=pytest.mark.full)])
def test_where_one_of_two_processes_fails_alone_the_other_does_not_stay_behind(command, rank, fitted, tmp_path) -> None:
    words = [*TINY, "--model.loss", "ContrastiveLoss"] if command == "fit" else ["--ckpt_path", fitted / "best.ckpt"]
    two = "--trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp --trainer.callbacks one_fails.OneFails"
    fails = f"--trainer.callbacks.rank {rank} --trainer.callbacks.error ValueError"
    process = Forked(levelfield(command, *words, *two.split(), *fails.split()), tmp_path / "log", tmp_path)
    process.wait_for(lambda: " fails" in process.printed())
    failed, others = time.monotonic(), children(process.pid)
    complaint = process.wait()
    while any(map(is_running, others)):
        time.sleep(0.01)
    assert time.monotonic() - failed < WAIT_SECONDS / 2
    assert complaint.count(f"ValueError: process {rank} fails") == 1, complaint


SOURCES = str(Path(builder.__file__).parents[1])


class Trunk(nn.Linear):
    num_features = 8


@pytest.mark.usefixtures("quiet")
def test_a_step_runs_nine_files_and_a_validation_twelve() -> None:
    files: dict[str, set[str]] = {"step": set(), "validation": set()}

    def note(name: str | None) -> None:
        sys.setprofile(name and (lambda frame, event, arg: files[name].add(frame.f_code.co_filename)))

    watch = LambdaCallback(
        on_train_batch_start=lambda *given: note("step" if given[3] == 2 else None),
        on_validation_start=lambda *_: note("validation"),
        on_validation_end=lambda *_: note(None),
    )
    loader = DataLoader(TensorDataset(rand(64, 8), arange(64) % 8), batch_size=16)
    learner = MetricLearner(Trunk(8, 8), loss=ContrastiveLoss(), embedding_size=4)
    small_trainer(watch, log_every_n_steps=1).fit(learner, loader, loader)
    for name, most in (("step", 9), ("validation", 12)):
        ours = {file for file in files[name] if file.startswith(SOURCES)}
        assert f"{SOURCES}/training/learner.py" in ours
        assert len(ours) <= most, ours
