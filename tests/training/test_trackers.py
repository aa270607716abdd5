"""What trackers get of a training, and as whose run."""

import csv

import pytest
import wandb
import yaml
from kill_at import KILL
from refused import succeeded
from small_fit import small_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import offline_runs

from levelfield.training.build import Training

WANDB = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": True, "project": "p"}}
SCORES = ("map_at_r", "r_precision", "precision_at_1")
BOARD = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "elsewhere"}}


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
    assert scalars == {"train/loss", "best/map_at_r", *(f"val/{name}" for name in SCORES)}
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
