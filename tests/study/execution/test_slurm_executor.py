"""An array of workers that submitit starts shares a study's jobs, and goes on where it is requeued."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from study_process import children, command_of
from toy_study import assert_same_bytes, run_study

from levelfield.errors import UserError
from levelfield.study.definition.study_file import load_spec
from levelfield.study.execution import share
from levelfield.study.execution.executors.slurm import Slurm
from levelfield.study.execution.share import Share
from levelfield.study.record import StudyRecord

# `sbatch` that keeps what it is given, which SLURM would take, and says what SLURM would.
SBATCH = '#!/bin/sh\ncp "$1" "$(dirname "$0")/submitted.sh"\necho Submitted batch job 42\n'


@pytest.mark.slow
@pytest.mark.processes
def test_an_array_does_what_is_to_do(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "shared"))
    for path in (*folder.glob("jobs/*/*/test"), *folder.glob("jobs/arcface/run1")):
        shutil.rmtree(path)
    for path in (folder / "ledger.jsonl", *folder.rglob("embeddings.safetensors"), folder / "results.csv"):
        path.unlink()
    run_study(folder, load_spec(toy_file), executor=Slurm(workers=1, cluster="local"))
    assert_same_bytes(folder, finished)


@pytest.mark.full
@pytest.mark.processes
def test_workers_that_are_preempted_go_on_and_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "preempted"
    words = ["study", "run", str(toy_file), "--output", str(folder), "--executor", "slurm"]
    words += ["--executor.cluster=local", "--executor.workers=2", "--executor.checkpoint_seconds=0"]
    study = subprocess.Popen([sys.executable, "-m", "levelfield", *words], stdout=subprocess.PIPE, text=True)
    try:
        for least in (3, 9):  # trials, then trials of the requeued ones
            while len(list(folder.glob("jobs/*/*/fold*/result.json"))) < least:
                assert study.poll() is None, study.communicate()
                time.sleep(0.01)
            elements = [each for each in children(study.pid) if "submitit.core._submit" in command_of(each)]
            assert elements
            for element in elements:
                os.kill(element, signal.SIGUSR2)
        printed, _ = study.communicate(timeout=600)
    finally:
        study.kill()
    assert study.returncode == 0, printed
    logs = "".join(path.read_text() for path in (folder / "slurm").glob("*_log.*"))
    assert logs.count("Requeued job") >= 3
    assert_same_bytes(folder, finished)


@pytest.mark.full
@pytest.mark.processes
def test_ctrl_c_ends_the_array(toy_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    words = ["study", "run", str(toy_file), "--output", str(folder), "--executor", "slurm"]
    words += ["--executor.cluster=local", "--executor.workers=1"]
    command = [sys.executable, "-m", "levelfield", *words]
    study = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(folder.glob("jobs/*/*/fold*/result.json")):
        assert study.poll() is None, study.communicate()
        time.sleep(0.01)
    started = children(study.pid)
    study.send_signal(signal.SIGINT)
    _, complaint = study.communicate(timeout=60)
    assert study.returncode == 130, complaint
    assert "of 22 jobs done; go on with: levelfield study resume" in complaint
    assert "--executor slurm --executor.workers=1 --executor.cluster=local" in complaint
    deadline = time.monotonic() + 20
    while any(map(command_of, started)):
        assert time.monotonic() < deadline, "a worker outlives its study"
        time.sleep(0.05)


def test_what_is_submitted_says_what_was_asked_for(
    toy_file: Path, tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with (
            pytest.raises(UserError, match="there is no sbatch here"),
            Slurm().ready(StudyRecord(folder, load_spec(toy_file))),
        ):
            pass
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text(SBATCH)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = {"workers": 3, "wait": "false", "partition": "short", "time": 60, "gpus": 1, "mem": 12}
    words = [word for key, value in options.items() for word in (f"--executor.{key}", str(value))]
    words += ["--executor", "slurm", "--executor.sbatch", "{account: lab, qos: low}"]
    code, printed, complaint = run("study", "run", str(toy_file), "--output", str(folder), *words)
    assert code == 0, complaint
    assert f"3 workers are submitted as job 42, and write to {folder}/slurm" in printed
    assert f"levelfield study resume {folder} opens the test classes" in printed
    asked = (tmp_path / "submitted.sh").read_text().splitlines()
    for option in (
        "--array=0-2%3", "--partition=short", "--time=60", "--gpus-per-node=1", "--mem=12GB", "--cpus-per-task=1",
        "--account=lab", "--qos=low", "--signal=USR2@90", "--job-name=toy",
    ):  # fmt: skip
        assert f"#SBATCH {option}" in asked


def test_a_node_says_in_one_line_what_it_cannot_work_with(finished: Path, tmp_path: Path, monkeypatch) -> None:
    elsewhere = Share(finished, ("30.0",), cpus=1, host="another")
    assert elsewhere().startswith(f"{finished}/locks/kind names the system's locks, which hold on one host alone")
    monkeypatch.setattr(share, "FILE_SECONDS", 0)
    assert "must lie on storage that all nodes share" in Share(tmp_path / "missing", ("30.0",), cpus=1)()


def test_a_library_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch, toy_file: Path, run) -> None:
    for name, extra in (("slurm", "submitit"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, extra, None)
        code, _, complaint = run("study", "run", str(toy_file), "--output", "out", "--executor", name)
        assert code == 2
        assert complaint.endswith(f"is not installed: pip install 'levelfield[{name}]'\n"), complaint
        assert complaint.count("\n") == 1
    assert not Path("out").exists()
