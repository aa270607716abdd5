"""Workers and several `study run` on one folder share its jobs, end together, and say in one line what stops them."""

import io
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from study_process import StudyProcess, children
from toy_study import run_study

from levelfield.cli.study_output import _devices_in_vain
from levelfield.errors import UserError
from levelfield.runtime.processes import end, is_running
from levelfield.storage.lock import Lock, running
from levelfield.study.spec import StudySpec
from levelfield.study.definition.study_file import load_spec
from levelfield.study.execution.executors import local
from levelfield.study.execution.executors.local import Local
from levelfield.study.execution.pool import Worker
from levelfield.study.jobs import study_jobs
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

TABLES = ("results.csv", "summary.csv")

# `levelfield`, with a line in a log for each job that this process does and each run that it tests.
LOGGED = """
import os, sys
from levelfield.cli.main import main
from levelfield.study.execution import worker
from levelfield.study.sealed_test import opening as test_stage

log, do_job, write_scores = open(sys.argv[1], "a"), worker.do_job, test_stage._Opening.write_scores

def logged_job(state, job, *rest):
    print(os.getpid(), job, file=log, flush=True)
    return do_job(state, job, *rest)

def logged_test(self, method, run, folds):
    print(os.getpid(), method, "tested", run, file=log, flush=True)
    return write_scores(self, method, run, folds)

worker.do_job, test_stage._Opening.write_scores = logged_job, logged_test
sys.exit(main(sys.argv[2:]))
"""


def start(study: Path | str, folder: Path, *options: str, cwd: Path | None = None) -> StudyProcess:
    words = ["study", "run", str(study), "--output", str(folder), *options]
    return StudyProcess(words, folder.with_suffix(".log"), cwd)


def assert_same_tables(folder: Path, finished: Path) -> None:
    for name in TABLES:
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def test_devices_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5a")
    assert Local(workers=2).visible() == ["2", "GPU-5a"]
    assert Local(workers=3, devices=[1, 0]).visible() == ["1", "0"]
    assert Local(devices=1).visible() == ["1"]
    for hidden in ("", "-1", "NoDevFiles", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert Local(workers=2).visible() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,-1,0")
    assert Local(workers=2).visible() == ["3"]


def test_a_note_on_devices_begins_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it fixes the devices that a process sees"))
    assert bool(_devices_in_vain([1])) == (torch.cuda.device_count() == 0)


def test_a_lock_is_free_when_it_is_released_though_a_forked_loader_has_its_file(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "part", "part")
    lock.acquire()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    lock.release()
    other = Lock(tmp_path, "part", "part")
    assert other.acquire()
    other.release()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_workers_that_share_a_gpu_are_dealt_evenly(
    toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = StudyRecord(tmp_path, load_spec(toy_file, {"runs": 100, "trainer.accelerator": "gpu"}))
    on_cpus = StudyRecord(tmp_path, load_spec(toy_file, {"runs": 100}))
    groups_of_two = StudyRecord(tmp_path, load_spec(toy_file, {"runs": 100, "trainer.devices": 2}))
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    monkeypatch.setattr(local, "BYTES_EACH", 1)
    assert Local(devices=[0, 1]).side_by_side(record) == 2
    packed = Local(devices=[4, 5], jobs_per_device=4)
    assert packed.side_by_side(record) == 8
    assert Local(devices=[4, 5, 6, 7], jobs_per_device=4).side_by_side(record) == 12, "no more than cores"
    assert packed.side_by_side(on_cpus) == 12, "jobs on the CPU share no GPU"
    on_gpu = {"accelerator": "gpu"}
    monkeypatch.setitem(next(iter(groups_of_two.spec.methods.values())), "trainer", {"devices": 2, **on_gpu})
    assert packed.side_by_side(groups_of_two) == 4, "one pair of GPUs"
    with packed.ready(record) as jobs:
        seen = [environ_of(worker.process.pid)["CUDA_VISIBLE_DEVICES"] for worker in jobs.args[0]]
    assert seen == ["4", "5"] * 4


def test_a_mistake_is_heard_though_the_worker_takes_its_time_to_end(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\necho \'{"error": "no luck"}\'\nread word\nexit 2\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    worker = Worker([], dict(os.environ), 0)
    assert worker.process.stdout is not None
    select.select([worker.process.stdout], [], [], 10)
    assert worker.told() == []
    worker.begin()
    assert worker.process.wait() == 2
    record = StudyRecord(tmp_path / "study", spec)
    with pytest.raises(UserError, match="no luck"):
        worker.look_after(record, StudyProgress(Console(file=io.StringIO()), "toy", record.state, {}))
    end([worker.process])


def environ_of(process: int) -> dict[str, str]:
    """What a process was started with."""
    words = Path(f"/proc/{process}/environ").read_text().rstrip("\0").split("\0")
    return dict(word.split("=", 1) for word in words)


@pytest.mark.slow
@pytest.mark.processes
def test_as_many_workers_as_cores_memory_and_jobs_go_round_for(
    toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec(toy_file, {"runs": 100})  # 2 methods x (3 trials + 100 runs) x 2 folds, and the baseline's 2
    record = StudyRecord(tmp_path, spec)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    memory = "MemTotal: 99999999 kB\nMemAvailable: {} kB\n"
    read_text = Path.read_text
    available = [64 << 20]

    def meminfo(path: Path, *arguments: Any, **named: Any) -> str:
        return memory.format(available[0]) if str(path) == "/proc/meminfo" else read_text(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", meminfo)
    assert Local().side_by_side(record) == 3
    available[0] = 5 << 20
    assert Local().side_by_side(record) == 2
    available[0] = 1 << 20
    assert Local().side_by_side(record) == 1
    available[0] = 64 << 20
    assert Local(workers=7).side_by_side(record) == 7
    assert Local().side_by_side(StudyRecord(tmp_path, load_spec(toy_file))) == 1, "22 jobs"
    assert Local().side_by_side(StudyRecord(tmp_path, load_spec(toy_file, {"runs": 100, "threads": 2}))) == 1
    on_gpus = StudyRecord(tmp_path, load_spec(toy_file, {"runs": 100, "trainer.accelerator": "gpu"}))
    assert Local(devices=[0, 1]).side_by_side(on_gpus) == 2


def test_two_workers_end_with_the_bytes_of_one(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder, spec = Path(shutil.copytree(finished, tmp_path / "shared")), load_spec(toy_file)
    for job in study_jobs(spec)[12:]:
        shutil.rmtree(folder / job.path)
    for path in (*folder.glob("jobs/*/*/test"), *folder.rglob("embeddings.safetensors")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("ledger.jsonl", *TABLES):
        (folder / name).unlink()
    run_study(folder, spec, executor=Local(workers=2))
    assert_same_tables(folder, finished)
    assert running(folder) == []


@pytest.mark.full
@pytest.mark.processes
def test_two_runs_of_one_study_share_its_jobs_and_do_none_twice(
    toy_file: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, log = tmp_path / "shared", tmp_path / "log"
    words = [sys.executable, "-c", LOGGED, str(log), "study", "run", str(toy_file), "--output", str(folder)]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        output, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors
        assert "too few runs for an interval" in output, "both print the table"
    lines = log.read_text().splitlines()
    with capsys.disabled():
        print("", *lines, sep="\n")
    done = Counter(line.partition(" ")[2] for line in lines)
    tested = [f"{method} tested {run}" for method in ("contrastive", "arcface") for run in range(2)]
    expected = [*(str(job) for job in study_jobs(load_spec(toy_file))), "pretrained tested 0", *tested]
    assert done == Counter(expected)
    share = Counter(line.partition(" ")[0] for line in lines if "tested" not in line)
    assert set(share) == {str(process.pid) for process in both}
    assert min(share.values()) > 5, "neither waits for the other"
    assert_same_tables(folder, finished)
    assert (folder / "ledger.jsonl").read_text().count('"opened"') == 1


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_twice_loses_nothing(workers: int, toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    option = f"--executor.workers={workers}"
    for stage, wait in (("trial0", 0.01), ("trial2", 0.1), ("run1", 0.5)):
        process = start(toy_file, folder, option)
        while not (folder / f"jobs/arcface/{stage}/fold0/metrics.csv").exists():
            assert process.exit_code is None, process.wait()
            time.sleep(0.001)
        workers = children(process.pid)
        process.signal(signal.SIGINT)
        time.sleep(wait)
        if process.exit_code is None:
            process.signal(signal.SIGINT)
        printed = process.wait()
        assert process.exit_code == 130, printed
        assert "Traceback" not in printed
        deadline = time.monotonic() + 20
        while any(map(is_running, workers)):
            assert time.monotonic() < deadline, "a worker outlives its study"
            time.sleep(0.05)
    process = start(toy_file, folder, option)
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert_same_tables(folder, finished)


@pytest.mark.full
@pytest.mark.processes
def test_a_mistake_that_a_worker_meets_is_one_line(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    (folder / "jobs/arcface/run1/fold1/result.json").unlink()
    process = start(toy_file, folder, "--executor.workers=2")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10**6, 10**6))
    *lines, error = process.wait().splitlines()
    assert process.exit_code == 2
    assert error.startswith(f"levelfield: {folder}/jobs/arcface/run1/fold1/best.ckpt: File too large; raise the limit")
    assert "Traceback" not in "".join(lines)
    run_study(folder, load_spec(toy_file))
    assert_same_tables(folder, finished)


OWN = """
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from levelfield.study.execution.worker import work


@dataclass
class Noting:
    note: str
    def side_by_side(self, record):
        return 1

    def words(self):
        return ["--executor", "my_executor.Noting", f"--executor.note={self.note}"]

    @contextmanager
    def ready(self, record):
        yield self.work

    def work(self, record, progress):
        Path(self.note).write_text(str(len(record.state.to_do)))
        work(record, progress, 30.0)

    @contextmanager
    def testing(self, record, opening):
        yield
"""


def test_an_executor_of_ones_own_is_one_file(
    toy_file: Path, finished: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "shared"))
    for path in (*folder.glob("jobs/*/*/test"), folder / "jobs/arcface/run1"):
        shutil.rmtree(path)
    for path in (folder / "ledger.jsonl", *folder.rglob("embeddings.safetensors")):
        path.unlink()
    (tmp_path / "my_executor.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    words = ("study", "run", str(toy_file), "--output", str(folder), "--executor", "my_executor.Noting")
    assert run(*words)[2] == "levelfield: --executor.note is required\n"
    code, _, complaint = run(*words, "--executor.note", "note")
    assert code == 0, complaint
    assert Path("note").read_text() == "2"
    assert_same_tables(folder, finished)
