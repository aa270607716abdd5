"""One training as the command starts it or a study builds it, what trackers get of it, and the files that it runs."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wandb
import yaml
from forked import Forked, children, levelfield
from kill_at import KILL
from lightning.pytorch.callbacks import LambdaCallback
from one_fails import WAIT_SECONDS
from refused import succeeded
from small_fit import small_config, small_trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_fit import TINY
from torch import arange, nn, rand
from torch.utils.data import DataLoader, TensorDataset
from wandb_files import offline_runs

from levelfield.core.processes import is_running
from levelfield.losses import ContrastiveLoss
from levelfield.models.trunks import ModuleTrunk
from levelfield.training import build as builder
from levelfield.training.build import Training
from levelfield.training.learner import MetricLearner

WANDB = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": True, "project": "p"}}
BOARD = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "elsewhere"}}


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


@pytest.mark.usefixtures("quiet")
def test_a_step_runs_nine_files_and_a_validation_twelve() -> None:
    sources, files = str(Path(builder.__file__).parents[1]), {"step": set[str](), "validation": set[str]()}

    def note(name: str | None) -> None:
        sys.setprofile(name and (lambda frame, event, arg: files[name].add(frame.f_code.co_filename)))

    watch = LambdaCallback(
        on_train_batch_start=lambda *given: note("step" if given[3] == 2 else None),
        on_validation_start=lambda *_: note("validation"),
        on_validation_end=lambda *_: note(None),
    )
    loader = DataLoader(TensorDataset(rand(64, 8), arange(64) % 8), batch_size=16)
    learner = MetricLearner(ModuleTrunk(nn.Identity(), 8), loss=ContrastiveLoss(), embedding_size=4)
    small_trainer(watch, log_every_n_steps=1).fit(learner, loader, loader)
    for name, most in (("step", 9), ("validation", 12)):
        ours = {file for file in files[name] if file.startswith(sources)}
        assert f"{sources}/training/learner.py" in ours
        assert len(ours) <= most, ours


@pytest.fixture(autouse=True)
def silent(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))


@pytest.mark.processes  # of W&B
def test_both_trackers_hold_the_same_numbers_and_the_training_is_the_same(tmp_path):
    for name, given in (("plain", {}), ("tracked", {"logger": [WANDB, BOARD]})):
        config = small_config(model={"loss": "ArcFaceLoss"}, trainer=given, data={"num_workers": 0})
        training = Training(config, tmp_path / name).build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
    for file in ("metrics.csv", "best.ckpt"):
        assert (tmp_path / "tracked" / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
    [found] = offline_runs(tmp_path)
    assert found.run.project == "p"
    scalars = found.keys - {"epoch", "trainer/global_step"}
    scores = {f"val/{name}" for name in ("map_at_r", "r_precision", "precision_at_1")}
    assert scalars == {"train/loss", "best/map_at_r", *scores}
    [events] = (tmp_path / "tracked").glob("events.out.tfevents.*")
    board = EventAccumulator(str(events)).Reload()
    assert scalars <= set(board.Tags()["scalars"])


@pytest.mark.full
def test_an_offline_run_holds_a_fit_and_a_resumed_fit_continues_it(tiny, run, tmp_path, monkeypatch):
    wandb.teardown()  # an earlier test's W&B has read the variables
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KILL, "1 0 SIGINT")
    monkeypatch.setenv("WANDB_NAME", "named")
    words = ["fit", *tiny, "--model.loss", "ArcFaceLoss", "--name", "it", "--output", tmp_path]
    words += ["--config", "logger/wandb.yaml", "--trainer.logger.group", "mine", "--trainer.log_every_n_steps", "1"]
    words += ["--trainer.callbacks+", "kill_at.KillAt", "--checkpoint_seconds", "0"]
    assert run(*words)[0] == 130
    monkeypatch.delenv(KILL)
    assert "resuming" in succeeded(run(*words, "--resume"))
    first, second = offline_runs(tmp_path)
    assert first.run.run_id == second.run.run_id
    for found in (first, second):
        names = found.run.run_group, found.run.display_name, found.run.job_type
        assert names == ("mine", "named", "fit"), "levelfield's where nothing else is given"
    folder = tmp_path / "fit" / "it" / "0"
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert {key: value for key, value in second.config.items() if key != "_wandb"} == settings
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for column in set(rows[0]) - {"epoch", "step"}:
        series = {int(row["step"]): float(row[column]) for row in rows if row[column]}
        assert first.series(column) | second.series(column) == pytest.approx(series), column
    assert second.summary["best/map_at_r"] == pytest.approx(max(float(row["val/map_at_r"] or 0) for row in rows))
    succeeded(run(*words))
    assert len({each.run.run_id for each in offline_runs(tmp_path)}) == 2  # a new fit is a new run
