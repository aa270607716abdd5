"""results.csv and summary.csv are derived from the result files alone, and damage is named."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from toy_study import evaluated

from levelfield.analysis.conditions import differing_conditions
from levelfield.analysis.results import collect_rows, write_tables
from levelfield.core.configuration import merge
from levelfield.core.errors import UserError
from levelfield.core.files import write_json
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job, Task, job_config, job_seed, row_runs, study_jobs
from levelfield.study.spec import StudySpec
from levelfield.study.training_job import write_result


def config(loss: str, samples_per_class: int) -> dict:
    return {
        "model": {"loss": {"class_path": loss}, "loss_lr": 0.01 * samples_per_class},
        "data": {"dataset": {"class_path": "Glyphs"}, "samples_per_class": samples_per_class},
        "trainer": {"max_epochs": 1},
    }


@pytest.fixture
def spec() -> StudySpec:
    methods = {"b": config("ContrastiveLoss", 4), "a": config("ArcFaceLoss", 1), "c": config("TripletMarginLoss", 4)}
    return StudySpec(name="toy", folds=2, runs=3, seed=5, threads=1, methods=methods)


def finish(study: StudyFolder, job: Job, found: dict[str, Any]) -> None:
    task = Task(study.spec, study.folder, job, parameters={}, sources={}, data="", weights=None)
    task.job_folder.mkdir(parents=True, exist_ok=True)
    study.checkpoint(job).touch()
    write_result(task, {**found, "seconds": 1.0})


def fill(folder: Path, spec: StudySpec) -> None:
    study = StudyFolder(folder, spec)
    for job in study_jobs(spec):
        finish(study, job, {"validation": {"map_at_r": job.number / 7 + job.fold / 100}})
    evaluation = evaluated(folder)
    for row, run in row_runs(spec):
        scores = {
            "separated": [{"map_at_r": 0.1 * run + 0.1}, {"map_at_r": 0.1 * run + 0.3}],
            "concatenated": {"map_at_r": 0.1 * run + 0.25},
        }
        identity = {"evaluation": evaluation, "configuration": study.test_hash(row)}
        write_json(study.test_file(row, run), {"method": row, **identity, **scores})


def test_tables_hold_every_score_and_their_means(tmp_path: Path, spec: StudySpec) -> None:
    fill(tmp_path, spec)
    write_tables(StudyFolder(tmp_path, spec))
    table = pd.read_csv(tmp_path / "results.csv")
    assert list(table) == ["method", "stage", "trial", "run", "fold", "embedding", "metric", "value"]
    assert len(table) == 20 + 10 * 3
    keys = table.drop(columns="value").fillna(-1)
    assert keys.equals(keys.sort_values(list(keys), ignore_index=True)), "sorted by key"
    one = table.query("method == 'a' and stage == 'run' and run == 2 and fold == 1")
    assert one.value.item() == 2 / 7 + 1 / 100, "every bit of a score survives"
    summary = pd.read_csv(tmp_path / "summary.csv")
    assert list(summary) == ["method", "embedding", "metric", "mean", "ci95", "n"]
    separated = summary.query("method == 'a' and embedding == 'separated'").iloc[0]
    # Runs score 0.2, 0.3, 0.4: mean 0.3, s = 0.1, t(0.975, 2) = 4.3027.
    assert separated["mean"] == pytest.approx(0.3)
    assert separated["ci95"] == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-5)
    assert separated["n"] == 3
    baseline = summary.query("method == 'pretrained' and embedding == 'concatenated'").iloc[0]
    assert (baseline["mean"], pd.isna(baseline["ci95"])) == (0.25, True)


def test_damaged_and_foreign_results_are_named(tmp_path: Path, spec: StudySpec) -> None:
    """Half a file, no text, no mapping, another job, another setting; and a checkpoint that is not there."""
    fill(tmp_path, spec)
    path = tmp_path / Job("a", "run", 1, 0).path / RESULT
    whole = path.read_bytes()
    others = (json.dumps(json.loads(whole) | other).encode() for other in ({"fold": 1}, {"configuration": "other"}))
    for damaged in (whole[: len(whole) // 2], b"\xff\xfe" + whole, b"[]\n", *others):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=re.escape(str(path))):
            collect_rows(StudyFolder(tmp_path, spec))
    path.write_bytes(whole)
    path.with_name("best.ckpt").unlink()
    with pytest.raises(UserError, match=re.escape(str(path.with_name("best.ckpt")))):
        collect_rows(StudyFolder(tmp_path, spec))


def test_folds_and_methods_share_a_runs_seed_and_runs_do_not(spec: StudySpec) -> None:
    seeds = {job: job_config(spec, job, {})["seed_everything"] for job in study_jobs(spec)}
    assert len({seed for job, seed in seeds.items() if job.number == 1}) == 1
    first = Job("a", "run", 0, 0)
    assert len({job_seed(spec, Job("a", stage, n, 0)) for stage in ("trial", "run") for n in range(100)}) == 200
    assert job_seed(replace(spec, seed=6), first) != job_seed(spec, first)
    assert job_seed(spec, Job("a@2", "run", 0, 0)) not in seeds.values(), "the same method again has its own"
    assert all(0 <= seed < 2**32 for seed in seeds.values()), "what seed_everything takes"


def test_differing_batch_composition_is_reported(spec: StudySpec) -> None:
    (sentence,) = differing_conditions(spec)
    assert sentence == "a: data.samples_per_class is 1, 4 for the others"
    trunks = {
        row: merge(each, {"model": {"trunk": row, "trunk_lr": n}}) for n, (row, each) in enumerate(spec.methods.items())
    }
    found = "\n".join(differing_conditions(replace(spec, methods=trunks, sweep=["model.trunk"])))
    assert ("model.trunk_lr" in found, "model.trunk is" in found) == (True, False)


def test_an_unfinished_or_failed_run_is_left_out_whole(tmp_path: Path, spec: StudySpec) -> None:
    """A mean over other folds would be another number."""
    fill(tmp_path, spec)
    finish(StudyFolder(tmp_path, spec), Job("a", "run", 1, 0), {"failure": "the loss is nan at step 3"})
    (tmp_path / Job("b", "run", 2, 0).path / RESULT).unlink()
    rows = [row for row in collect_rows(StudyFolder(tmp_path, spec)) if row.stage == "run"]
    assert {(row.method, row.run) for row in rows if row.method in "ab"} == {("a", 0), ("a", 2), ("b", 0), ("b", 1)}
