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
BOARD = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "elsewhere"}}
OF_EACH_FIT = {
    *("train/loss", "best/map_at_r"),
    *(f"val/{name}" for name in ("map_at_r", "r_precision", "precision_at_1")),
}


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
    scalars = found.keys - {"epoch", "trainer/global_step"}
    assert scalars == OF_EACH_FIT
    [events] = (tmp_path / "tracked").glob("events.out.tfevents.*")
    board = EventAccumulator(str(events)).Reload()
    assert scalars <= set(board.Tags()["scalars"])


@pytest.mark.full
def test_an_offline_run_holds_a_fit(tiny, run, tmp_path, monkeypatch):
    words = ["fit", *tiny, "--model.loss", "ArcFaceLoss", "--output", tmp_path, "--name", "named"]
    succeeded(run(*words, "--config", "logger/wandb.yaml", "--trainer.log_every_n_steps", "1"))

    folder = tmp_path / "fit" / "named" / "0"
    [found] = offline_runs(tmp_path)
    assert (found.run.display_name, found.run.run_group, found.run.job_type) == ("named-0", "named", "fit")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert {key: value for key, value in found.config.items() if key != "_wandb"} == settings
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = set(rows[0]) - {"epoch", "step"}
    assert columns >= {"train/loss", "val/map_at_r", "val/r_precision", "val/precision_at_1"}
    for column in columns:
        series = {int(row["step"]): float(row[column]) for row in rows if row[column]}
        assert found.series(column) == pytest.approx(series), column
    assert found.summary["best/map_at_r"] == pytest.approx(max(found.series("val/map_at_r").values()))


@pytest.mark.full
def test_a_resumed_fit_continues_its_run(tiny, run, tmp_path, monkeypatch):
    wandb.teardown()  # an earlier test's W&B has read the variables
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KILL, "1 0 SIGINT")
    monkeypatch.setenv("WANDB_NAME", "named")
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--name", "it", "--output", tmp_path]
    words += ["--config", "logger/wandb.yaml", "--trainer.logger.group", "mine"]
    words += ["--trainer.callbacks+", "kill_at.KillAt", "--checkpoint_seconds", "0"]
    assert run(*words)[0] == 130
    monkeypatch.delenv(KILL)
    printed = succeeded(run(*words, "--resume"))
    assert "resuming" in printed
    first, second = offline_runs(tmp_path)
    assert first.run.run_id == second.run.run_id
    assert {first.run.run_group, second.run.run_group} == {"mine"}
    assert (first.run.display_name, first.run.job_type) == ("named", "fit"), "levelfield's where nothing else is given"
    assert sorted({*first.series("val/map_at_r"), *second.series("val/map_at_r")}) == [3, 7]
    succeeded(run(*words))
    assert len({each.run.run_id for each in offline_runs(tmp_path)}) == 2  # a new fit is a new run
