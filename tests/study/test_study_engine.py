"""A study from its file to its tables: the same bytes with one worker and with two."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deletable import PAPERS, RAY, needs
from rich.console import Console
from study_engine import SMALL, results, run_file, small_study, tables
from tiny_fit import REPOSITORY

from levelfield.errors import UserError
from levelfield.runtime.processes import SIDE_BY_SIDE
from levelfield.study.dry_run import print_jobs
from levelfield.study.executors import make_slots
from levelfield.study.executors.local import Local
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec

PLAIN = SMALL.replace("  mine: {model: {loss: my_loss.Mine}}\n", "")


@pytest.fixture(scope="module")
def toy(toy_file: Path, finished: Path) -> StudyFolder:
    """The finished toy study; not to be changed."""
    return StudyFolder(finished, load_spec(toy_file))


@pytest.mark.slow
@pytest.mark.processes
def test_two_workers_end_with_the_bytes_of_one(toy: StudyFolder, toy_file: Path, tmp_path: Path) -> None:
    spec, machine = load_spec(toy_file), StringIO()
    study = run_file(toy_file, tmp_path / "two", make_slots(spec, options={"workers": 2}), machine=machine)
    assert tables(study.folder) == tables(toy.folder)
    lines = [json.loads(line) for line in machine.getvalue().splitlines()]
    jobs = [line for line in lines if line["event"] == "job"]
    assert len(jobs) == len(results(study.folder)) == 22
    assert (jobs[-1]["done"], jobs[-1]["jobs"], jobs[-1]["seconds_left"]) == (22, 22, None)


def test_a_finished_study_imports_no_torch(toy: StudyFolder, toy_file: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom levelfield.study.folder import StudyFolder\n"
        "from levelfield.study.rows import load_spec\nfrom levelfield.study.run import run_study\n"
        "run_study(StudyFolder(Path(sys.argv[2]), load_spec(Path(sys.argv[1]))))\n"
        "assert not {'torch', 'optuna', 'lightning'} & set(sys.modules)"
    )
    folder = shutil.copytree(toy.folder, tmp_path / "out")
    stamp = [path.stat().st_mtime_ns for path in results(folder)]
    words = [sys.executable, "-c", code, str(toy_file), str(folder)]
    assert subprocess.run(words, env={**os.environ}, check=False).returncode == 0
    assert [path.stat().st_mtime_ns for path in results(folder)] == stamp


def test_a_dry_run_lists_the_jobs_and_builds_nothing(toy: StudyFolder, tmp_path: Path) -> None:
    shown = StringIO()
    print_jobs(Console(file=shown, width=100), toy)
    text = shown.getvalue()
    assert "22 jobs" in text
    assert re.search(r"\b12 .*\b8 .*\b2 ", text), "trainings in the search and in the runs, fits of untrained rows"
    row = next(line for line in text.splitlines() if "arcface" in line).split()
    assert row == ["arcface", "3", "x", "2", "2", "x", "2", "10", "10"]


@needs(PAPERS)
def test_a_dry_run_of_a_papers_study_writes_nothing(tmp_path: Path) -> None:
    table4 = StudyFolder(tmp_path / "out", load_spec(REPOSITORY / "papers/zhai_wu/table4.yaml"))
    print_jobs(Console(file=StringIO(), width=100), table4)
    assert not table4.folder.exists()


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


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("lokal", {}, "local"),
        ("local", {"worker": 2}, "workers"),
        ("local", {"workers": 0}, "workers"),
        ("my_slots.Missing", {}, "my_slots"),
    ],
)
def test_a_mistaken_executor_is_named(toy: StudyFolder, name: str, options: dict, key: str) -> None:
    with pytest.raises(UserError, match=key):
        make_slots(toy.spec, name, options)


def test_an_executor_of_ones_own_runs_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.processes
def test_workers_of_a_task_write_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning takes SLURM's number of a task for its rank, and only rank 0 writes."""
    task = {"PROCID": 1, "LOCALID": 1, "NODEID": 0, "NTASKS": 2, "NTASKS_PER_NODE": 2, "STEP_NUM_TASKS": 1}
    for name, value in task.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    file = small_study(tmp_path, text=PLAIN)
    study = run_file(file, tmp_path / "out", make_slots(load_spec(file), options={"workers": 2}))
    jobs = [path.parent for path in results(study.folder, "contrastive/*/fold*")]
    assert len(jobs) == 2
    assert all((job / name).is_file() for job in jobs for name in ("config.yaml", "metrics.csv"))


@needs(RAY)
def test_an_actor_knows_how_many_share_its_node(toy: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each would start a loader process for every core of the node."""
    from levelfield.study.executors.ray import Ray

    nodes = [{"Alive": True, "Resources": {"CPU": number}} for number in (0, 2, 6)]
    given: dict[str, Any] = {}
    cluster = SimpleNamespace(
        exceptions=SimpleNamespace(RayActorError=OSError, WorkerCrashedError=OSError, NodeDiedError=OSError),
        cluster_resources=dict,
        nodes=lambda: nodes,
        remote=lambda _: SimpleNamespace(options=lambda **options: given.update(options)),
    )
    monkeypatch.setattr("levelfield.study.executors.ray._connected", lambda _: cluster)
    for workers, cpus, number, together in (("auto", 1, 8, "6"), ("auto", 2, 4, "3"), (2, 1, 2, "2")):
        assert Ray(toy.spec, workers=workers, cpus=cpus).number == number
        assert given["runtime_env"]["env_vars"][SIDE_BY_SIDE] == together
