"""A whole small study, on folds or on the whole training half: what it writes, and what it runs on."""

import os
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import yaml
from deletable import RAY, needs
from printed import numbers
from refused import refuses
from rich.console import Console
from study_engine import PLAIN, evaluations, run_file, scores, small_study, tables
from toy_study import TOY, run_study

from levelfield.analysis.verify import verify_study
from levelfield.cli.study import print_jobs
from levelfield.experiment import Study
from levelfield.metrics import retrieval_metrics
from levelfield.study.executors import make_slots
from levelfield.study.executors.local import Local
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config, study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.training.learner import MetricLearner


def test_every_job_leaves_what_the_design_says(finished: Path, spec: StudySpec) -> None:
    for job in study_jobs(spec):
        expected = {"config.yaml", "result.json"}
        expected |= {"tested.safetensors", "best.ckpt"} if job.stage == "run" else set()
        expected |= set() if job.method == "pretrained_one_pca" else {"metrics.csv"}
        assert {path.name for path in (finished / job.path).iterdir()} == expected
        if job.stage == "run":
            MetricLearner.load_from_checkpoint(finished / job.path / "best.ckpt")
    assert (finished / "study.yaml").is_file()
    stored = safetensors.torch.load((finished / "jobs/arcface/run0/fold0/tested.safetensors").read_bytes())
    assert stored["labels"].unique().numel() == 16, "half of the 32 letters"
    # 2 folds x (1 + 2 x (3 + 2)) validation scores; 3 metrics x (2 folds + concatenated) x 5 tested runs,
    # and the baseline's by one PCA.
    assert len(scores(finished)) == 22 + 45 + 3


@pytest.mark.slow
def test_stopped_here_the_whole_runs_are_scored_and_going_on_ends_in_the_same_bytes(finished, spec, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "toy"))
    (folder / "ledger.jsonl").unlink()
    left = (Job(*each).path for each in (("arcface", "run", 0, 1), ("contrastive", "run", 1, 0)))
    for path in (*folder.glob("jobs/*/run*/test"), *(folder / path for path in left)):
        shutil.rmtree(path)
    run_study(folder, spec, stop_here=True)
    tested = {("pretrained", "0"), ("pretrained_one_pca", "0"), ("contrastive", "0"), ("arcface", "1")}
    assert {key[:2] for key in scores(folder, stage="test", trial="")} == tested
    assert evaluations(folder) == 1
    assert verify_study(StudyFolder.begun(folder)) == []
    run_study(folder, spec)
    assert evaluations(folder) == 2
    assert tables(folder) == tables(finished)


@pytest.fixture(scope="module")
def toy(toy_file: Path, finished: Path) -> StudyFolder:
    """The finished toy study; not to be changed."""
    return StudyFolder(finished, load_spec(toy_file))


def test_a_dry_run_lists_the_jobs_and_builds_nothing(toy: StudyFolder, tmp_path: Path) -> None:
    shown = StringIO()
    print_jobs(Console(file=shown, width=200), Study(toy.folder))
    of = {line.split(":")[0].strip(): numbers(line) for line in shown.getvalue().splitlines()}
    assert (of["arcface"], of["contrastive"]) == ([6, 4, 10], [6, 4, 10]), "jobs in the search, in the runs, done"
    print_jobs(Console(file=StringIO()), Study("laptop/glyphs", output=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_another_folder_is_refused(tmp_path: Path) -> None:
    file, out = small_study(tmp_path, text=PLAIN), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").touch()
    for use in (lambda folder: run_file(file, folder), StudyFolder.begun):
        refuses(str(out), use, out)
    (out / "thesis.tex").rename(out / ".study.yaml.tmp")  # a kill left it
    missing = load_spec(file, {"data.dataset": "ImageTable", "data.dataset.table": "missing.csv"})
    refuses(r"missing\.csv", run_study, out, missing)


COUNTED = """
from levelfield.study.workers import Here

class Counted(Here):
    def __init__(self, spec, most: int = 3):
        self.left = most

    def submit(self, *arguments):
        self.left -= 1
        return super().submit(*arguments)
"""


@pytest.mark.slow
def test_an_executor_of_ones_own_runs_a_study(here: Path) -> None:
    file = small_study(here, text=PLAIN)
    refuses("my_slots", make_slots, load_spec(file), "my_slots.Missing", {})
    (here / "my_slots.py").write_text(COUNTED)
    slots = make_slots(load_spec(file), "my_slots.Counted", {"most": 10})
    run_file(file, here / "out", slots)
    assert slots.left == 10 - 3 - 2 - 3  # three untrained jobs, two trainings, a test of each row


def test_workers_share_the_machine(toy: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """23 jobs on 8 GPUs: a worker's start is short next to a job on a GPU, and threads are no GPUs."""
    trainer = {"accelerator": "gpu"}
    methods = {row: {**config, "trainer": trainer} for row, config in toy.spec.methods.items()}
    spec = replace(toy.spec, methods=methods, threads=4)
    monkeypatch.setattr("levelfield.study.executors.local.BYTES_EACH", 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # GPUs and cores, and the workers; no more than jobs.
    for gpus, cores, workers in ((8, 64, 8), (32, 64, 23), (32, 4, 4), (0, 4, 1)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert Local(spec).number == workers
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert Local(toy.spec).number == 5, "23 jobs on the CPU, 4 for each worker"
    assert Local(replace(toy.spec, threads=32)).number == 2, "64 cores"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,-1,7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # torch ends the list at -1
    assert Local(spec, workers=4)._devices == ["3", "5"]
    assert Local(toy.spec, workers=4)._devices == []


@needs(RAY)
def test_a_job_reserves_the_cpus_and_gpus_that_are_given(toy: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from levelfield.study.executors import ray

    given: dict[str, float] = {}
    nodes = [{"Alive": True, "Resources": resources} for resources in ({"CPU": 2, "GPU": 0.75}, {"CPU": 6})]
    actor = SimpleNamespace(options=lambda **options: given.update(options))
    parts = {"cluster_resources": dict, "nodes": lambda: nodes}
    monkeypatch.setattr(ray, "_connected", lambda _: SimpleNamespace(remote=lambda _: actor, **parts))
    counts = [(8, 1, {}), (4, 2, {}), (3, 1, {"workers": 3}), (2, 1, {"gpus": 0.25}), (3, 0.5, {"gpus": 0.25})]
    for number, cpus, options in [*counts, (1, 1, {"gpus": 0.5})]:
        assert ray.Ray(toy.spec, cpus=cpus, **options).number == number, options
        assert (given["num_cpus"], given["num_gpus"]) == (cpus, options.get("gpus", 0))


def whole_half_file(folder: Path, **changes) -> Path:
    study = {**yaml.safe_load(TOY), "folds": 1, "runs": 1, "search": {"trials": 2, "folds": 2}, **changes}
    stop = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/map_at_r", "mode": "max"}}
    study["base"][0]["trainer"]["callbacks"] = [stop]
    (folder / "whole.yaml").write_text(yaml.safe_dump(study))
    return folder / "whole.yaml"


def test_the_jobs_and_their_folds(tmp_path: Path) -> None:
    spec = load_spec(whole_half_file(tmp_path, runs=3))
    assert len(study_jobs(spec)) == 1 + 2 * 2 * 2 + 2 * 3, "the baseline, trials on two folds, runs"
    trial, run = (job_config(spec, Job("arcface", stage, 0, 0), {})["data"] for stage in ("trial", "run"))
    assert (trial["fold"], trial["num_folds"]) == (0, 2)
    assert (run["fold"], run.get("num_folds")) == ("none", None)
    assert load_spec(whole_half_file(tmp_path, search={"trials": 1})).folds_of("trial") == 4, "the usual number"
    assert load_spec(whole_half_file(tmp_path), {"folds": 3, "search.folds": 2}).folds_of("run") == 3
    refuses(r"search\.folds", load_spec, whole_half_file(tmp_path), {"search.folds": 1})


@pytest.mark.slow
def test_a_search_on_folds_then_the_whole_half(tmp_path: Path) -> None:
    folder, spec = tmp_path / "whole", load_spec(whole_half_file(tmp_path))
    record = run_study(folder, spec)
    results = StudyFolder.begun(folder).state.results
    for method in spec.methods:
        run = results[Job(method, "run", 0, 0)]
        assert run["validation"] == {}
        assert (len(run["data"]["train_classes"]), run["data"]["val_classes"]) == (16, [])
        assert run["best_epoch"] == 1, "the last of 2"
        trials = [[results[Job(method, "trial", number, fold)] for fold in range(2)] for number in range(2)]
        best = max(trials, key=lambda folds: sum(fold["validation"]["map_at_r"] for fold in folds))
        assert run["parameters"] == best[0]["parameters"]
        assert len(results[Job(method, "trial", 0, 0)]["data"]["train_classes"]) == 8
    untrained = results[Job("pretrained", "run", 0, 0)]
    assert (untrained["validation"], len(untrained["data"]["train_classes"])) == ({}, 16)

    job = Job("arcface", "run", 0, 0)
    stored = safetensors.torch.load((folder / job.path / "tested.safetensors").read_bytes())
    expected = retrieval_metrics(stored["embeddings"], stored["labels"])["map_at_r"]
    tested = scores(folder, method="arcface", stage="test", metric="map_at_r", embedding="separated")
    assert [*tested.values()] == [pytest.approx(expected, abs=1e-9)]
    texts = [file.read_text() for file in (record.results_file, record.summary_file, Study(folder).report())]
    assert not any("oncatenated" in text for text in texts), "one model has nothing beside it"
    assert verify_study(record) == []

    before = record.checkpoint(job).read_bytes()
    shutil.rmtree(folder / job.path)
    assert run_study(folder, spec).checkpoint(job).read_bytes() == before, "a lost run is computed again"
