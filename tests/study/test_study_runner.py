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
from rich.console import Console
from study_engine import PLAIN, evaluations, run_file, scores, small_study, tables
from torch.nn.functional import normalize
from toy_study import TOY, run_study

from levelfield.analysis.verify import verify_study
from levelfield.cli.study import print_jobs
from levelfield.core.errors import UserError
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
        folder = finished / job.path
        expected = {"config.yaml", "result.json"}
        if job.stage == "run":
            expected |= {"tested.safetensors", "best.ckpt"}
        if job.method != "pretrained_one_pca":
            expected.add("metrics.csv")
        assert {path.name for path in folder.iterdir()} == expected
        if job.stage == "run":
            MetricLearner.load_from_checkpoint(folder / "best.ckpt")
    assert (finished / "study.yaml").is_file()
    stored = safetensors.torch.load((finished / "jobs/arcface/run0/fold0/tested.safetensors").read_bytes())
    assert stored["labels"].unique().numel() == 16, "half of the 32 letters"
    # 2 folds x (1 + 2 x (3 + 2)) validation scores; 3 metrics x (2 folds + concatenated) x 5 tested runs,
    # and the baseline's by one PCA.
    assert len(scores(finished)) == 22 + 45 + 3


def test_scores_follow_from_the_stored_embeddings(finished: Path) -> None:
    files = [finished / f"jobs/arcface/run1/fold{fold}/tested.safetensors" for fold in range(2)]
    first, second = (safetensors.torch.load(file.read_bytes()) for file in files)
    both = normalize(torch.cat([normalize(first["embeddings"]), normalize(second["embeddings"])], dim=1))
    for fold, embeddings in (("0", first["embeddings"]), ("1", second["embeddings"]), ("", both)):
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(len(embeddings)))
        found = retrieval_metrics(embeddings, first["labels"])
        for metric in ("map_at_r", "precision_at_1"):
            wanted = {"method": "arcface", "run": "1", "fold": fold, "stage": "test", "metric": metric}
            assert [*scores(finished, **wanted).values()] == [pytest.approx(found[metric], abs=1e-9)]


@pytest.mark.slow
def test_stopped_here_the_whole_runs_are_scored_and_going_on_ends_in_the_same_bytes(finished, spec, tmp_path):
    folder = Path(shutil.copytree(finished, tmp_path / "toy"))
    (folder / "ledger.jsonl").unlink()
    left = (Job(*each).path for each in (("arcface", "run", 0, 1), ("contrastive", "run", 1, 0)))
    for path in (*folder.glob("jobs/*/run*/test"), *(folder / path for path in left)):
        shutil.rmtree(path)
    run_study(folder, spec, stop_here=True)
    tested = {("pretrained", "0"), ("pretrained_one_pca", "0"), ("contrastive", "0"), ("arcface", "1")}
    for method in spec.rows:
        for number in "01":
            assert bool(scores(folder, method=method, run=number, stage="test")) == ((method, number) in tested)
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
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    file = small_study(tmp_path, text=PLAIN)
    for use in (lambda folder: run_file(file, folder), StudyFolder.begun):
        with pytest.raises(UserError, match=str(tmp_path / "out")):
            use(tmp_path / "out")
    (tmp_path / "out" / "thesis.tex").rename(tmp_path / "out" / ".study.yaml.tmp")  # a kill left it
    missing = load_spec(file, {"data.dataset": "ImageTable", "data.dataset.table": "missing.csv"})
    with pytest.raises(UserError, match=r"missing\.csv"):
        run_study(tmp_path / "out", missing)


COUNTED = """
from levelfield.study.workers import Here

class Counted(Here):
    def __init__(self, spec, most: int = 3):
        self.left = most

    def submit(self, slot, function, *arguments):
        self.left -= 1
        return super().submit(slot, function, *arguments)
"""


@pytest.mark.slow
def test_an_executor_of_ones_own_runs_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="my_slots"):
        make_slots(load_spec(small_study(tmp_path, text=PLAIN)), "my_slots.Missing", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_slots.py").write_text(COUNTED)
    file = small_study(tmp_path, text=PLAIN)
    slots = make_slots(load_spec(file), "my_slots.Counted", {"most": 10})
    run_file(file, tmp_path / "out", slots)
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
    for number, options in (
        (8, {"cpus": 1}),
        (4, {"cpus": 2}),
        (3, {"cpus": 1, "workers": 3}),
        (2, {"cpus": 1, "gpus": 0.25}),
        (3, {"cpus": 0.5, "gpus": 0.25}),
        (1, {"cpus": 1, "gpus": 0.5}),
    ):
        assert ray.Ray(toy.spec, **options).number == number, options
        assert (given["num_cpus"], given["num_gpus"]) == (options["cpus"], options.get("gpus", 0))


STOP = {"monitor": "val/map_at_r", "mode": "max"}


def whole_half_file(folder: Path, **changes) -> Path:
    study = yaml.safe_load(TOY)
    study |= {"folds": 1, "runs": 1, "search": {"trials": 2, "folds": 2}, **changes}
    study["base"][0]["trainer"]["callbacks"] = [{"class_path": "EarlyStopping", "init_args": STOP}]
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
    with pytest.raises(UserError, match=r"search\.folds"):
        load_spec(whole_half_file(tmp_path), {"search.folds": 1})


@pytest.mark.slow
def test_a_search_on_folds_then_the_whole_half(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    spec = load_spec(whole_half_file(tmp_path))
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

    # A run that is lost is done again, to the same bytes.
    before = record.checkpoint(job).read_bytes()
    shutil.rmtree(folder / job.path)
    assert run_study(folder, spec).checkpoint(job).read_bytes() == before
