"""A study killed at any moment and resumed ends with the bytes of one that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levelfield.study.lock import running

TABLES = ("results.csv", "summary.csv")
# 22 jobs and the test scores of 5 runs.
RESULTS = 27


def start(toy_file: Path, folder: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "levelfield", "study", "run", str(toy_file), "--output", str(folder), *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process: "subprocess.Popen[str]", moment: Callable[[], Any]) -> bool:
    """Whether the moment came before the process ended."""
    deadline = time.monotonic() + 300
    while process.poll() is None and not moment():
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.001)
    return process.poll() is None


def stop_when(process: "subprocess.Popen[str]", moment: Callable[[], Any], how: signal.Signals) -> tuple[str, str]:
    assert wait_for(process, moment), f"the study ended before the moment came: {process.communicate()}"
    process.send_signal(how)
    return process.communicate(timeout=60)


def finish(toy_file: Path, folder: Path, *options: str) -> str:
    process = start(toy_file, folder, *options)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return output


def assert_same_tables(folder: Path, finished: Path) -> None:
    for name in TABLES:
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def openings(folder: Path) -> int:
    return (folder / "ledger.jsonl").read_text().count('"event": "opened"')


def results(folder: Path) -> int:
    return len(list(folder.glob("jobs/*/*/*/result.json")))


def doing(folder: Path, worker: int | None = None) -> list[dict[str, Any]]:
    """The jobs that are being done, those of a process alone if one is given, and by whom."""
    steps = [entry for entry in running(folder) if entry["process"] and entry["title"] not in ("study", "tables", "")]
    return [entry for entry in steps if worker in (None, entry["process"])]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.processes
def test_three_kills_and_a_ctrl_c_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    jobs = folder / "jobs"

    # In the middle of a trial's training: its logger has begun to write.
    process = start(toy_file, folder)
    stop_when(process, (jobs / "contrastive/trial1/fold1/metrics.csv").exists, signal.SIGKILL)
    assert not (jobs / "contrastive/trial1/fold1/result.json").exists()
    assert (jobs / "arcface/trial1/fold0/result.json").exists()

    # Ctrl-C, while a run's job is being set up or trained.
    process = start(toy_file, folder)
    _, errors = stop_when(process, (jobs / "arcface/run0/fold0/config.yaml").exists, signal.SIGINT)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        f"stopped with 15 of 22 jobs done; go on with: levelfield study resume {toy_file} --output {folder}"
    )

    # Between a checkpoint and its result.
    process = start(toy_file, folder)
    stop_when(process, (jobs / "arcface/run1/fold0/best.ckpt").exists, signal.SIGKILL)

    # While the test classes are open.
    process = start(toy_file, folder)
    stop_when(process, (jobs / "contrastive/run0/fold1/embeddings.safetensors").exists, signal.SIGKILL)
    assert openings(folder) == 1
    assert not (jobs / "arcface/run1/test/result.json").exists()

    assert "too few runs for an interval" in finish(toy_file, folder)
    assert openings(folder) == 1
    assert_same_tables(folder, finished)


def seconds_of_a_job(folder: Path) -> float:
    done = [json.loads(path.read_text())["seconds"] for path in folder.glob("jobs/*/*/fold*/result.json")]
    return sum(done) / len(done) if done else 1.0


@pytest.mark.full
@pytest.mark.processes
def test_twenty_kills_at_random_moments_change_no_byte(
    toy_file: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "killed"
    moments = random.Random(0)
    # Each comes some part of a job's time after another number of results: trials, runs and tests have their share.
    for number, results_before in enumerate(sorted(moments.sample(range(RESULTS - 1), 20)), start=1):
        process = start(toy_file, folder, f"--executor.checkpoint_seconds={moments.choice([0, 30])}")
        assert wait_for(process, lambda: doing(folder)), process.communicate()
        assert wait_for(process, lambda least=results_before: results(folder) >= least), process.communicate()
        wait_for(process, at(time.monotonic() + moments.uniform(0, 1) * seconds_of_a_job(folder)))
        titles = [entry["title"] for entry in doing(folder)]
        process.kill()
        process.communicate()
        with capsys.disabled():
            print(f"kill {number}: {results(folder)} results, in {', '.join(titles) or 'no job'}; {process.returncode}")
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    finish(toy_file, folder)
    assert openings(folder) == 1
    assert_same_tables(folder, finished)


def at(moment: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= moment


@pytest.mark.full
@pytest.mark.processes
def test_kills_of_two_workers_in_turn_and_of_their_study_change_no_byte(
    toy_file: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "killed"
    options = ("--executor.workers=2", "--executor.checkpoint_seconds=0")
    moments = random.Random(1)
    killed: list[int] = []
    process = start(toy_file, folder, *options)
    # Of 20 kills in the 22 jobs each fifth is the study's own process, the others are of its workers.
    for number, results_before in enumerate(sorted(moments.sample(range(21), 20)), start=1):
        assert wait_for(process, lambda least=results_before: results(folder) >= least), process.communicate()
        wait_for(process, at(time.monotonic() + moments.uniform(0, 1) * seconds_of_a_job(folder)))
        # The one that was killed longest ago, or not yet: the workers go in turn.
        assert wait_for(process, lambda: [step for step in doing(folder) if step["process"] not in killed[-1:]])
        victim = next(step for step in doing(folder) if step["process"] not in killed[-1:])
        with capsys.disabled():
            print(f"kill {number}: {results(folder)} results, {victim['title']}", "and the study" * (number % 5 == 0))
        if number % 5:
            os.kill(victim["process"], signal.SIGKILL)
            killed.append(victim["process"])
            continue
        workers = [step["process"] for step in doing(folder)]
        process.kill()
        output, _ = process.communicate()
        assert "died (signal 9); another takes its place" in output
        deadline = time.monotonic() + 20
        while any(map(is_alive, workers)):
            assert time.monotonic() < deadline, "a worker outlives its study"
            time.sleep(0.05)
        process = start(toy_file, folder, *options)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert openings(folder) == 1
    assert_same_tables(folder, finished)
