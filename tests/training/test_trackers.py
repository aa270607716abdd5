"""What a tracker holds of a fit, and the refusal of a tracker whose package is missing."""

import csv
import sys

import pytest
import yaml
from refused import refused
from wandb_files import offline_runs


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


@pytest.mark.parametrize(
    ("logger", "packages"), [("wandb", ["wandb"]), ("tensorboard", ["tensorboard", "tensorboardX"])]
)
def test_a_tracker_that_is_not_installed_is_one_line(logger, packages, tiny, run, tmp_path, monkeypatch):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "fit"]
    refused(run(*words, "--config", f"logger/{logger}"), f"levelfield[{logger}]")
    assert not list(tmp_path.rglob("*.ckpt"))
