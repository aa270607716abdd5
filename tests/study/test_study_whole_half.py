"""`folds: 1`: a study whose runs train on the whole training half, after a search on folds of it."""

import csv
import re
import shutil
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from toy_study import TOY, run_study

from levelfield.analysis.results import collect_rows
from levelfield.analysis.verdicts import verdict_lines
from levelfield.analysis.verify import verify_study
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.metrics import retrieval_metrics
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config, study_jobs
from levelfield.study.rows import load_spec
from levelfield.training.build import build
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

STOP = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val/map_at_r"}}


def whole_half_file(folder: Path, **changes) -> Path:
    study = yaml.safe_load(TOY)
    study |= {"folds": 1, "runs": 1, "search": {"trials": 2, "folds": 2}, **changes}
    study["base"][0]["trainer"]["callbacks"] = [{**STOP, "init_args": {**STOP["init_args"], "mode": "max"}}]
    path = folder / "whole.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


def test_the_jobs_and_their_folds(tmp_path: Path) -> None:
    spec = load_spec(whole_half_file(tmp_path, runs=3))
    # The baseline; 2 methods x 2 trials x 2 folds; 2 methods x 3 runs.
    assert len(study_jobs(spec)) == 1 + 8 + 6
    trial, run = (job_config(spec, Job("arcface", stage, 0, 0), {})["data"] for stage in ("trial", "run"))
    assert (trial["fold"], trial["num_folds"]) == (0, 2)
    assert (run["fold"], run.get("num_folds")) == ("none", None)
    assert load_spec(whole_half_file(tmp_path, search={"trials": 1})).folds_of("trial") == 4, "the usual number"
    assert load_spec(whole_half_file(tmp_path), {"folds": 3, "search.folds": 2}).folds_of("run") == 3
    with pytest.raises(UserError, match=r"search\.folds"):
        load_spec(whole_half_file(tmp_path), {"search.folds": 1})


@pytest.mark.slow
def test_a_search_on_folds_then_the_whole_half(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    spec = load_spec(whole_half_file(tmp_path))
    run_study(folder, spec)
    record = StudyFolder.begun(folder)
    results = record.state.results
    assert not record.state.to_do
    for method in spec.methods:
        run = results[Job(method, "run", 0, 0)]
        assert run["validation"] == {}
        assert (len(run["data"]["train_classes"]), run["data"]["val_classes"]) == (16, [])
        assert run["best_epoch"] == 1, "the last of 2"
        scores = {
            trial: fmean(results[Job(method, "trial", trial, fold)]["validation"]["map_at_r"] for fold in range(2))
            for trial in range(2)
        }
        best = max(scores, key=scores.__getitem__)
        assert run["parameters"] == results[Job(method, "trial", best, 0)]["parameters"]
        assert len(results[Job(method, "trial", 0, 0)]["data"]["train_classes"]) == 8
    assert results[Job("pretrained", "run", 0, 0)]["validation"] == {}
    assert len(results[Job("pretrained", "run", 0, 0)]["data"]["train_classes"]) == 16

    # The test scores are those of the one checkpoint, embedded here.
    job = Job("arcface", "run", 0, 0)
    data = build(job_config(spec, job, {}), tmp_path / "again", progress=False).datamodule
    data.setup("test")
    learner = MetricLearner.load_from_checkpoint(record.checkpoint(job))
    found = embed(learner, data.test_dataloader())
    expected = retrieval_metrics(found.embeddings, found.labels)["map_at_r"]
    rows = [row for row in collect_rows(record) if (row.method, row.stage) == ("arcface", "test")]
    assert {row.embedding for row in rows} == {"separated"}, "one model has nothing beside it"
    assert next(row.value for row in rows if row.metric == "map_at_r") == pytest.approx(expected, abs=1e-6)
    with open(folder / "summary.csv", newline="") as file:
        assert {row["embedding"] for row in csv.DictReader(file)} == {"separated"}

    study = Study(folder)
    table = str(study.table())
    assert "mean of 1 run\n" in table
    assert verdict_lines(collect_rows(record), spec) == []
    page = study.report().read_text()
    assert "oncatenated" not in page
    assert re.search(r"\b16 classes .*\b16 test classes", page)
    assert verify_study(record) == []

    # A run that is lost is done again, to the same bytes.
    before = (record.checkpoint(job)).read_bytes()
    shutil.rmtree(folder / job.path)
    run_study(folder, spec)
    assert (record.checkpoint(job)).read_bytes() == before
