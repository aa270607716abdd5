"""A study killed at any moment and resumed ends with the bytes of one that was left alone."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TABLES = ("results.csv", "summary.csv")


def start(toy_file: Path, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "levelfield", "study", "run", str(toy_file), "--output", str(folder)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def stop_when(process: "subprocess.Popen[str]", moment: Callable[[], bool], how: signal.Signals) -> tuple[str, str]:
    deadline = time.monotonic() + 120
    while process.poll() is None and not moment():
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.001)
    assert process.poll() is None, f"the study ended before the moment came: {process.communicate()}"
    process.send_signal(how)
    return process.communicate(timeout=60)


def assert_same_tables(folder: Path, finished: Path) -> None:
    for name in TABLES:
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def openings(folder: Path) -> int:
    return (folder / "ledger.jsonl").read_text().count('"event": "opened"')


@pytest.mark.slow
@pytest.mark.processes
def test_three_kills_and_a_ctrl_c_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    jobs = folder / "jobs"

    # In the middle of a training: its logger has begun to write.
    process = start(toy_file, folder)
    stop_when(process, (jobs / "contrastive/run0/fold1/metrics.csv").exists, signal.SIGKILL)
    assert not (jobs / "contrastive/run0/fold1/result.json").exists()
    assert (jobs / "arcface/run0/fold0/result.json").exists()

    # Ctrl-C, while a job is being set up or trained.
    process = start(toy_file, folder)
    _, errors = stop_when(process, (jobs / "arcface/run0/fold1/config.yaml").exists, signal.SIGINT)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"stopped with 5 of 10 jobs done; go on with: levelfield study resume {toy_file} --output {folder}"
    )

    # Between a checkpoint and its result.
    process = start(toy_file, folder)
    stop_when(process, (jobs / "arcface/run1/fold0/best.ckpt").exists, signal.SIGKILL)

    # While the test classes are open.
    process = start(toy_file, folder)
    stop_when(process, (jobs / "contrastive/run0/fold1/embeddings.safetensors").exists, signal.SIGKILL)
    assert openings(folder) == 1
    assert not (jobs / "arcface/run1/test/result.json").exists()

    process = start(toy_file, folder)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "too few runs for an interval" in output
    assert openings(folder) == 1
    assert_same_tables(folder, finished)


@pytest.mark.full
@pytest.mark.processes
def test_twenty_kills_at_random_moments_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    moments = random.Random(0)
    ended = 0
    for _ in range(20):
        process = start(toy_file, folder)
        deadline = time.monotonic() + 60
        while process.poll() is None and not (folder / "running.lock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(moments.uniform(3, 10))
        process.kill()
        process.communicate()
        ended += process.returncode == 0
        if ended:
            assert_same_tables(folder, finished)
            shutil.rmtree(folder)
            ended = 0
    process = start(toy_file, folder)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert openings(folder) == 1
    assert_same_tables(folder, finished)
