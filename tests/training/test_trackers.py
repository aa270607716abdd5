"""What a tracker holds of a fit, and the refusal of a tracker whose package is missing."""

import csv

import pytest
import yaml
from jsonargparse import Namespace
from refused import refused
from wandb_files import offline_runs

from levelfield.training import trackers
from levelfield.training.trackers import place_trackers

STOPPED = """
from pathlib import Path
from lightning.pytorch import Callback


class Stopped(Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1 and not Path("again").exists():
            Path("again").touch()
            raise KeyboardInterrupt
"""
OURS = {"name": "it-0", "group": "it", "job_type": "fit"}


@pytest.mark.full
def test_an_offline_run_holds_a_fit(tiny, run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    words = ["fit", *tiny, "--model.loss", "ArcFaceLoss", "--output", tmp_path, "--name", "named"]
    keep = ["--trainer.callbacks+", "KeepInWandb", "--trainer.callbacks.queries", "2"]
    code, _, complaint = run(*words, "--config", "logger/wandb.yaml", "--trainer.log_every_n_steps", "1", *keep)
    assert code == 0, complaint

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
    assert len(found.table("val/neighbours")) == 2
    [best] = [artifact for artifact in found.artifacts if artifact.type == "model"]
    assert [content.path for content in best.manifest.contents] == ["best.ckpt"]
    assert best.manifest.contents[0].size == (folder / "best.ckpt").stat().st_size


@pytest.mark.parametrize("logger", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_one_line(logger, tiny, run, tmp_path, monkeypatch):
    # Not by sys.modules: the parser would forget the arguments of wandb.init for the tests that follow.
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "fit"]
    refused(run(*words, "--config", f"logger/{logger}"), f"levelfield[{logger}]")
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("kind", "given", "variables", "ours", "expected"),
    [
        ("WandbLogger", {}, {}, OURS, {**OURS, "id": None, "resume": "allow"}),
        ("WandbLogger", {"group": "g", "name": "n", "id": "i"}, {}, OURS, {"group": "g", "name": "n", "id": "i"}),
        ("WandbLogger", {"job_type": "j"}, {"WANDB_RUN_GROUP": "g"}, OURS, {"job_type": "j", "group": None}),
        ("WandbLogger", {}, {"WANDB_NAME": "n", "WANDB_RESUME": "must"}, OURS, {"name": None, "resume": None}),
        # The jobs of a study are runs of their own.
        ("WandbLogger", {"version": "v"}, {"WANDB_RUN_ID": "i"}, {"id": "own"}, {"id": "own", "version": None}),
        ("TensorBoardLogger", {"name": "lightning_logs"}, {}, OURS, {"name": "", "version": ""}),
        ("TensorBoardLogger", {"name": "n", "version": 3}, {}, OURS, {"name": "n", "version": 3}),
    ],
)
def test_what_the_user_gives_to_a_tracker_is_kept(kind, given, variables, ours, expected, tmp_path, monkeypatch):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    empty = dict.fromkeys(("name", "version", "id", "group", "job_type", "resume"))
    logger = Namespace(class_path=f"loggers.{kind}", init_args=Namespace(**{**empty, **given}))
    place_trackers([logger], tmp_path, ours)
    built = {**vars(logger.init_args), **(logger.get("dict_kwargs") or {})}
    assert {key: built[key] for key in expected} == expected
    assert logger.init_args.save_dir == str(tmp_path)


@pytest.mark.full
def test_a_resumed_fit_continues_its_run(tiny, run, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stopping.py").write_text(STOPPED)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--name", "it", "--output", tmp_path]
    words += ["--config", "logger/wandb.yaml", "--trainer.logger.group", "mine"]
    words += ["--trainer.callbacks+", "stopping.Stopped", "--checkpoint_seconds", "0"]
    code, _, complaint = run(*words)
    assert code == 130, complaint
    code, printed, complaint = run(*words, "--resume")
    assert code == 0, complaint
    assert "resuming" in printed
    first, second = offline_runs(tmp_path)
    assert first.run.run_id == second.run.run_id
    assert {first.run.run_group, second.run.run_group} == {"mine"}
    assert sorted({*first.series("val/map_at_r"), *second.series("val/map_at_r")}) == [3, 7]
    code, _, complaint = run(*words)
    assert code == 0, complaint
    assert len({each.run.run_id for each in offline_runs(tmp_path)}) == 2  # a new fit is a new run
