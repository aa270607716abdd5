"""results.csv and summary.csv are derived from the result files alone, and damage is named."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from refused import refuses

from levelfield.analysis.conditions import differing_conditions
from levelfield.analysis.results import ResultRow, SummaryRow, collect_rows, summarise
from levelfield.core.configuration import merge
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job, job_config, job_seed, study_jobs
from levelfield.study.spec import StudySpec

JOB = Job("arcface", "run", 1, 0)


def test_tables_hold_every_score_and_their_means(finished: Path) -> None:
    table, summary = (pd.read_csv(finished / name) for name in ("results.csv", "summary.csv"))
    assert list(table) == ["method", "stage", "trial", "run", "fold", "embedding", "metric", "value"]
    keys = table.drop(columns="value").fillna(-1)
    assert keys.equals(keys.sort_values(list(keys), ignore_index=True)), "sorted by key"
    stored = json.loads((finished / JOB.path / RESULT).read_text())["validation"]["map_at_r"]
    one = table.query("method == 'arcface' and stage == 'run' and run == 1 and fold == 0")
    assert one.value.item() == stored, "every bit of a score survives"
    key = ["method", "embedding", "metric"]
    assert list(summary) == [*key, "mean", "ci95", "n"]
    means = table.query("stage == 'test'").groupby(key)["value"].mean()
    assert dict(summary.set_index(key)["mean"]) == pytest.approx(dict(means))
    scores = [(run, fold, 0.1 * run + (0.1, 0.3)[fold]) for run in range(3) for fold in range(2)]
    found = summarise(ResultRow("a", "test", None, run, fold, "separated", "nmi", value) for run, fold, value in scores)
    # Runs score 0.2, 0.3, 0.4: mean 0.3, s = 0.1, t(0.975, 2) = 4.3027.
    half = pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-5)
    assert found == [SummaryRow("a", "separated", "nmi", pytest.approx(0.3), half, 3)]


def test_damaged_and_foreign_results_are_named(copy: Path) -> None:
    """Half a file, no text, no mapping, another job, another setting; and a checkpoint that is not there."""
    path = copy / JOB.path / RESULT
    whole = path.read_bytes()
    others = (json.dumps(json.loads(whole) | other).encode() for other in ({"fold": 1}, {"configuration": "other"}))
    for damaged in (whole[: len(whole) // 2], b"\xff\xfe" + whole, b"[]\n", *others):
        path.write_bytes(damaged)
        refuses(str(path), lambda: collect_rows(StudyFolder.begun(copy)))
    path.write_bytes(whole)
    path.with_name("best.ckpt").unlink()
    refuses(str(path.with_name("best.ckpt")), lambda: collect_rows(StudyFolder.begun(copy)))


def test_folds_and_methods_share_a_runs_seed_and_runs_do_not(spec: StudySpec) -> None:
    seeds = {job: job_config(spec, job, {})["seed_everything"] for job in study_jobs(spec)}
    assert len({seed for job, seed in seeds.items() if (job.stage, job.number) == ("run", 1)}) == 1
    assert len({job_seed(spec, Job("arcface", stage, n, 0)) for stage in ("trial", "run") for n in range(100)}) == 200
    assert job_seed(replace(spec, seed=6), JOB) != job_seed(spec, JOB)
    assert job_seed(spec, Job("arcface@2", "run", 1, 0)) not in seeds.values(), "the same method again has its own"
    assert all(0 <= seed < 2**32 for seed in seeds.values()), "what seed_everything takes"


def test_differing_batch_composition_is_reported(spec: StudySpec) -> None:
    assert differing_conditions(spec) == ["ArcFace: data.samples_per_class is 1, 4 for the others"]
    trunks = {row: merge(each, {"model": {"trunk": row, "trunk_lr": len(row)}}) for row, each in spec.methods.items()}
    found = "\n".join(differing_conditions(replace(spec, methods=trunks, sweep=["model.trunk"])))
    assert ("model.trunk_lr" in found, "model.trunk is" in found) == (True, False)


def test_an_unfinished_or_failed_run_is_left_out_whole(copy: Path) -> None:
    """A mean over other folds would be another number."""
    path = copy / JOB.path / RESULT
    result = json.loads(path.read_text())
    del result["validation"], result["checkpoint"]
    path.write_text(json.dumps({**result, "failure": "the loss is nan at step 3"}))
    (copy / Job("contrastive", "run", 0, 1).path / RESULT).unlink()
    rows = [row for row in collect_rows(StudyFolder.begun(copy)) if row.stage == "run"]
    assert {(row.method, row.run) for row in rows} == {("pretrained", 0), ("arcface", 0), ("contrastive", 1)}
