"""A whole small study, on folds or on the whole training half: what it writes, and what it runs on."""

import csv
import json
import os
import re
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from deletable import PAPERS, is_deleted
from rich.console import Console
from study_engine import SMALL, run_file, small_study, tables
from tiny_fit import REPOSITORY
from torch.nn.functional import normalize
from toy_study import TOY, run_study

from levelfield.analysis.results import collect_rows
from levelfield.analysis.verdicts import verdict_lines
from levelfield.analysis.verify import verify_study
from levelfield.core.ledger import EVALUATED, read_lines
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.metrics import retrieval_metrics
from levelfield.study.dry_run import print_jobs
from levelfield.study.executors import make_slots
from levelfield.study.executors.local import Local
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config, study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.training.build import build
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / "ledger.jsonl") if line["event"] == EVALUATED]


def scores(folder: Path, **wanted: str) -> list[float]:
    with open(folder / "results.csv", newline="") as file:
        return [float(row["value"]) for row in csv.DictReader(file) if all(row[key] == wanted[key] for key in wanted)]


def test_every_job_leaves_what_the_design_says(finished: Path, spec: StudySpec) -> None:
    for job in study_jobs(spec):
        folder = finished / job.path
        expected = {"config.yaml", "result.json"}
        if job.stage == "run":
            expected |= {"tested.safetensors", "best.ckpt" if job.method != "pretrained" else "pca.safetensors"}
        if job.method != "pretrained":
            expected.add("metrics.csv")
        assert {path.name for path in folder.iterdir()} == expected
        if job.stage == "run" and job.method != "pretrained":
            MetricLearner.load_from_checkpoint(folder / "best.ckpt")
    assert (finished / "study.yaml").is_file()
    stored = safetensors.torch.load((finished / "jobs/arcface/run0/fold0/tested.safetensors").read_bytes())
    assert stored["labels"].unique().numel() == 16, "half of the 32 letters"
    # 2 folds x (1 + 2 x (3 + 2)) validation scores; 3 metrics x (2 folds + concatenated) x 5 tested runs,
    # and the baseline's by one PCA.
    assert len(scores(finished)) == 22 + 45 + 3


def test_runs_have_the_best_trials_setting_and_fresh_seeds(finished: Path, spec: StudySpec) -> None:
    results = {job: json.loads((finished / job.path / "result.json").read_text()) for job in study_jobs(spec)}
    for method in spec.methods:
        means = [
            sum(results[Job(method, "trial", trial, fold)]["validation"]["map_at_r"] for fold in range(2)) / 2
            for trial in range(3)
        ]
        best = results[Job(method, "trial", means.index(max(means)), 0)]
        runs = [results[Job(method, "run", run, fold)] for run in range(2) for fold in range(2)]
        assert all(run["parameters"] == best["parameters"] for run in runs)
        assert len({run["seed"] for run in runs}) == 2
        assert {run["seed"] for run in runs}.isdisjoint(
            result["seed"] for job, result in results.items() if job.stage == "trial"
        )
    config = yaml.safe_load((finished / "jobs/arcface/run1/fold0/config.yaml").read_text())
    parameters = results[Job("arcface", "run", 1, 0)]["parameters"]
    assert config["model"]["loss"]["init_args"]["margin"] == parameters["model.loss.init_args.margin"]
    assert config["model"]["loss_lr"] == parameters["model.loss_lr"]


def test_scores_follow_from_the_stored_embeddings(finished: Path) -> None:
    for method, run in [("pretrained", "0"), ("arcface", "1")]:
        folds = [
            safetensors.torch.load((finished / f"jobs/{method}/run{run}/fold{k}/tested.safetensors").read_bytes())
            for k in range(2)
        ]
        labels = folds[0]["labels"]
        for fold, stored in enumerate(folds):
            assert torch.allclose(stored["embeddings"].norm(dim=1), torch.ones(len(labels)), atol=1e-5)
            found = retrieval_metrics(stored["embeddings"], labels)["map_at_r"]
            wanted = {"method": method, "run": run, "fold": str(fold), "stage": "test", "metric": "map_at_r"}
            assert scores(finished, **wanted) == [pytest.approx(found, abs=1e-9)]
        together = normalize(torch.cat([fold["embeddings"] for fold in folds], dim=1))
        found = retrieval_metrics(together, labels)["precision_at_1"]
        wanted = {"method": method, "run": run, "embedding": "concatenated", "metric": "precision_at_1"}
        assert scores(finished, **wanted) == [pytest.approx(found, abs=1e-9)]


def test_a_finished_study_is_not_done_again(copy: Path, spec: StudySpec) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}
    run_study(copy, spec)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")} == before
    assert len(evaluations(copy)) == 1


@pytest.mark.slow
def test_a_reason_evaluates_once_more_and_counts(copy: Path, finished: Path, spec: StudySpec) -> None:
    run_study(copy, spec, retest="a mistake in the test transform")
    run_study(copy, spec, retest="a mistake in the test transform")
    assert len(evaluations(copy)) == 2, "one reason evaluates once: the same command may be given again"
    assert tables(copy) == tables(finished)
    entry = evaluations(copy)[1]
    assert entry["reason"] == "a mistake in the test transform"
    assert len(entry["checkpoints"]) == 10


@pytest.mark.slow
def test_stopped_here_the_whole_runs_are_scored_and_going_on_ends_in_the_same_bytes(finished, spec, tmp_path):
    folder = tmp_path / "toy"
    shutil.copytree(finished, folder)
    for part in ("ledger.jsonl", "results.csv", "summary.csv"):
        (folder / part).unlink()
    for tested in folder.glob("jobs/*/run*/test"):
        shutil.rmtree(tested)
    shutil.rmtree(folder / Job("arcface", "run", 0, 1).path)
    shutil.rmtree(folder / Job("contrastive", "run", 1, 0).path)
    run_study(folder, spec, stop_here=True)
    with open(folder / "results.csv", newline="") as file:
        tested = {(row["method"], row["run"]) for row in csv.DictReader(file) if row["stage"] == "test"}
    assert tested == {*{("pretrained", "0"), ("pretrained_one_pca", "0")}, *{("contrastive", "0"), ("arcface", "1")}}
    assert len(evaluations(folder)) == 1
    assert verify_study(StudyFolder.begun(folder)) == []
    run_study(folder, spec)
    assert len(evaluations(folder)) == 2
    assert tables(folder) == tables(finished)


PLAIN = SMALL.replace("  mine: {model: {loss: my_loss.Mine}}\n", "")


@pytest.fixture(scope="module")
def toy(toy_file: Path, finished: Path) -> StudyFolder:
    """The finished toy study; not to be changed."""
    return StudyFolder(finished, load_spec(toy_file))


def test_a_dry_run_lists_the_jobs_and_builds_nothing(toy: StudyFolder, tmp_path: Path) -> None:
    shown = StringIO()
    print_jobs(Console(file=shown, width=100), toy)
    text = shown.getvalue()
    assert "22 jobs" in text
    assert re.search(r"\b12 .*\b8 .*\b2 ", text), "trainings in the search and in the runs, fits of untrained rows"
    row = next(line for line in text.splitlines() if "arcface" in line).split()
    assert row == ["arcface", "3", "x", "2", "2", "x", "2", "10", "10"]
    for folder, file in ((tmp_path / "out", REPOSITORY / "papers/zhai_wu/table4.yaml"),) * (not is_deleted(PAPERS)):
        print_jobs(Console(file=StringIO()), StudyFolder(folder, load_spec(file)))
        assert not folder.exists()


@pytest.mark.slow
def test_a_study_without_folds_validates_nothing_and_tests_its_last_checkpoint(tmp_path: Path) -> None:
    study = run_file(small_study(tmp_path, text=PLAIN.replace("folds: 2", "folds: 1")), tmp_path / "out")
    assert all(result["validation"] == {} for result in study.state.results.values())
    assert b"concatenated" not in tables(study.folder)[1]
    assert len(tables(study.folder)[1].splitlines()) == 1 + 2 * 3


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    file = small_study(tmp_path, text=PLAIN)
    with pytest.raises(UserError, match=str(tmp_path / "out")):
        run_file(file, tmp_path / "out")
    with pytest.raises(UserError, match=str(tmp_path / "out")):
        StudyFolder.begun(tmp_path / "out")


@pytest.mark.slow
def test_an_executor_of_ones_own_runs_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="my_slots"):
        make_slots(load_spec(small_study(tmp_path, text=PLAIN)), "my_slots.Missing", {})
    monkeypatch.syspath_prepend(tmp_path)
    own = """
from levelfield.study.workers import Here

class Counted(Here):
    def __init__(self, spec, most: int = 3):
        self.left = most

    def submit(self, slot, function, *arguments):
        self.left -= 1
        return super().submit(slot, function, *arguments)
"""
    (tmp_path / "my_slots.py").write_text(own)
    file = small_study(tmp_path, text=PLAIN)
    slots = make_slots(load_spec(file), "my_slots.Counted", {"most": 10})
    run_file(file, tmp_path / "out", slots)
    assert slots.left == 10 - 1 - 2 - 2  # the untrained row's folds together, two jobs, two tests


def test_workers_share_the_machine(toy: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(spec: StudySpec) -> StudySpec:
        trainer = {"accelerator": "gpu"}
        return replace(spec, methods={row: {**config, "trainer": trainer} for row, config in spec.methods.items()})

    assert Local(toy.spec).number == 1  # 22 jobs do not pay for a second process
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,-1,7")
    slots = Local(gpu(toy.spec), workers=4)
    assert slots._devices == ["3", "5"]
    assert Local(gpu(toy.spec), workers=2, devices=[1, 0])._devices == ["5", "3"]
    assert Local(gpu(toy.spec), workers=2, devices=1)._devices == ["5"]
    for outside in (2, -1):
        with pytest.raises(UserError, match=rf"--executor.devices {outside}"):
            Local(gpu(toy.spec), devices=[0, outside])
    assert Local(toy.spec, workers=4)._devices == []


def test_each_gpu_gets_a_worker(toy: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """22 jobs on 8 GPUs: a worker's start is short next to a job on a GPU, and threads are no GPUs."""
    trainer = {"trainer": {"accelerator": "gpu"}}
    spec = replace(toy.spec, threads=4, methods={row: {**c, **trainer} for row, c in toy.spec.methods.items()})
    monkeypatch.setattr("levelfield.study.executors.local.BYTES_EACH", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    assert Local(spec).number == 8
    assert Local(spec, jobs_per_device=2).number == 16
    assert Local(spec, jobs_per_device=4).number == 22, "no more than jobs"
    assert Local(spec, devices=[0, 1, 2]).number == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert Local(spec).number == 4, "no more than cores"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Local(spec).number == 1


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
