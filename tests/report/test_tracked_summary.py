"""A study in W&B's offline files: a run a job and one of the whole, all in one group."""

import csv
from itertools import product
from pathlib import Path

import pytest
from toy_study import TOY
from wandb_files import offline_runs

from levelfield.analysis.results import SummaryRow
from levelfield.cli.options import dotted
from levelfield.experiment import Study
from levelfield.report.tracked_summary import scores_by_key
from levelfield.study.rows import load_spec


def test_a_study_is_a_group_of_its_jobs_and_a_summary(
    tmp_path: Path, trunk_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(TOY)
    small = {"search.trials": 0, "runs": 2, "trainer.max_epochs": 1, "data.num_workers": 0}
    tracked = {**dotted(["logger/wandb.yaml"], []), **small, "model.trunk.weights": str(trunk_file)}
    study = Study(file, output=tmp_path / "study", options=tracked).run()

    assert "sync" not in capfd.readouterr().err  # what W&B says of each run
    runs = offline_runs(study.folder)
    assert {run.run.run_group for run in runs} == {"toy"}
    jobs = [run for run in runs if run.run.job_type != "summary"]
    places = {tuple(run.config[key] for key in ("study", "method", "stage", "run", "fold")) for run in jobs}
    assert len(jobs) == 8
    assert places == set(product(["toy"], ["contrastive", "arcface"], ["run"], [0, 1], [0, 1]))
    first = next(run for run in jobs if run.run.display_name == "arcface run 1 fold 0")
    assert list(first.run.tags) == ["arcface", "run", "run 1", "fold 0"]
    metrics = study.folder / "jobs" / "arcface" / "run1" / "fold0" / "metrics.csv"
    with open(metrics, newline="") as rows:
        scores = [float(row["val/map_at_r"]) for row in csv.DictReader(rows) if row["val/map_at_r"]]
    assert list(first.series("val/map_at_r").values()) == pytest.approx(scores)
    assert {"train/class_weight_drift", "lr/loss", "grad_norm/trunk"} <= first.keys

    [summary] = [run for run in runs if run.run.job_type == "summary"]
    assert summary.run.display_name == "toy summary"
    with open(study.folder / "summary.csv", newline="") as rows:
        table = list(csv.DictReader(rows))
    told = summary.summary
    for row in table:
        key = f"test/{row['method']}/{row['embedding']}/{row['metric']}"
        assert told[key] == pytest.approx(float(row["mean"]))
        assert f"{key}_ci95" not in told  # two runs have no interval
    assert summary.history[0]["summary/nrows"] == len(table)
    assert summary.history[0]["verdicts/nrows"] == len(study.verdicts())

    study.run()  # nothing is left to do, and nothing is told twice
    assert len(offline_runs(study.folder)) == len(runs)


def test_an_interval_stands_beside_its_score() -> None:
    rows = [SummaryRow("a", "separated", "map_at_r", 0.5, 0.01, 3)]
    assert scores_by_key(rows) == {"test/a/separated/map_at_r": 0.5, "test/a/separated/map_at_r_ci95": 0.01}


def test_a_tracker_is_no_part_of_what_a_study_is(toy_file: Path) -> None:
    plain = load_spec(toy_file)
    callback = {"class_path": "levelfield.training.callbacks.TrackTraining", "init_args": {"galleries": 8}}
    tracked = load_spec(toy_file, {**dotted(["logger/wandb.yaml"], []), "trainer.callbacks": [callback]})
    assert tracked.methods["arcface"]["trainer"]["logger"]["class_path"].endswith("WandbLogger")
    assert tracked.configuration_hash() == plain.configuration_hash()
    assert tracked.row_hashes == plain.row_hashes
    stopping = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/map_at_r"}}
    both, one = (load_spec(toy_file, {"trainer.callbacks": each}) for each in ([stopping, callback], [stopping]))
    assert both.configuration_hash() == one.configuration_hash() != plain.configuration_hash()
