"""A study in W&B's offline files: one run per job and one for the tables, all in one group."""

from itertools import product
from pathlib import Path

import pytest
from wandb_files import offline_runs

from levelfield.analysis.results import SummaryRow
from levelfield.cli.options import dotted
from levelfield.experiment import Study
from levelfield.report.tracked_summary import scores_by_key

METHODS = ("contrastive", "arcface")


@pytest.mark.full
def test_a_study_is_a_group_of_its_jobs_and_its_tables(tmp_path: Path, toy_file: Path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "of-an-agent")
    small = {"search.trials": 1, "runs": 1, "trainer.max_epochs": 1, "data.num_workers": 0}
    logged = dotted(["logger/wandb.yaml"], [("trainer.logger.group", "mine")])
    study = Study(toy_file, output=tmp_path / "study", options={**logged, **small}).run()
    assert "sync" not in capfd.readouterr().err  # what W&B says of each run
    runs = offline_runs(study.folder)
    assert {run.run.run_group for run in runs} == {"mine"}
    assert len({run.run.run_id for run in runs}) == len(runs)
    trained = study.results.query("stage in ('trial', 'run') and metric == 'map_at_r' and method in @METHODS")
    best = {(row.method, row.stage, row.fold): row.value for row in trained.itertuples()}
    jobs = {tuple(map(run.config.get, ("method", "stage", "fold"))): run for run in runs if run.run.job_type != "test"}
    assert {*jobs} == {*best} == {*product(METHODS, ["trial", "run"], [0, 1])}
    for (method, stage, fold), run in jobs.items():
        assert run.config["study"] == "toy"
        assert (run.run.job_type, run.run.display_name) == (stage, f"{method} {stage} 0 fold {fold}")
        assert list(run.run.tags) == [method, stage, f"{stage} 0", f"fold {fold}"]
        assert run.summary["best/map_at_r"] == pytest.approx(best[method, stage, fold])

    [test] = [run for run in runs if run.run.job_type == "test"]
    assert (test.run.display_name, test.config["study"], test.config["runs"]) == ("toy test", "toy", 1)
    for name in ("results", "summary"):
        cells = [["" if cell is None else str(cell) for cell in row] for row in test.table(name)]
        assert [*map(",".join, cells)] == (study.folder / f"{name}.csv").read_text().splitlines()[1:]
    assert [row[0] for row in test.table("verdicts")] == study.verdicts()
    for row in study.summary.itertuples():
        assert test.summary[f"test/{row.method}/{row.embedding}/{row.metric}"] == pytest.approx(row.mean)

    study.run()  # nothing is left to do, and nothing is logged twice
    assert len(offline_runs(study.folder)) == len(runs)


def test_an_interval_stands_beside_its_score() -> None:
    """tests/study/test_study_spec.py has that a tracker is no part of a study."""
    rows = [SummaryRow("a", "separated", "map_at_r", 0.5, 0.01, 3)]
    assert scores_by_key(rows) == {"test/a/separated/map_at_r": 0.5, "test/a/separated/map_at_r_ci95": 0.01}
