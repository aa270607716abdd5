"""A study killed at any moment and resumed ends with the bytes of one that was left alone."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_process import StudyProcess

from levelfield.runtime.processes import is_running
from levelfield.storage.lock import running

TABLES = ("results.csv", "summary.csv")
# 22 jobs and the test scores of 5 runs.
RESULTS = 27


def start(toy_file: Path, folder: Path, *options: str) -> StudyProcess:
    words = ["study", "run", str(toy_file), "--output", str(folder), *options]
    return StudyProcess(words, folder.with_suffix(".log"))


def wait_for(process: StudyProcess, moment: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the moment, when `moment(*arguments)` is true, came before the process ended."""
    deadline = time.monotonic() + 600
    while process.exit_code is None and not moment(*arguments):
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.001)
    return process.exit_code is None


def stop_when(process: StudyProcess, moment: Callable[[], Any], how: signal.Signals) -> str:
    assert wait_for(process, moment), f"the study ended before the moment came: {process.wait()}"
    process.signal(how)
    return process.wait()


def finish(toy_file: Path, folder: Path, *options: str) -> str:
    process = start(toy_file, folder, *options)
    printed = process.wait()
    assert process.exit_code == 0, printed
    return printed


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
    printed = stop_when(process, (jobs / "arcface/run0/fold0/config.yaml").exists, signal.SIGINT)
    assert process.exit_code == 130
    assert printed.splitlines()[-1] == (
        f"stopped with 15 of 22 jobs done; go on with: levelfield study resume {folder}"
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


@pytest.mark.full
@pytest.mark.processes
def test_a_signal_reaches_what_the_workers_do_and_changes_no_byte(
    toy_file: Path, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    options = ("--executor.workers=2", "--executor.checkpoint_seconds=1000000")
    for number, least in ((signal.SIGUSR1, 3), (signal.SIGTERM, 9)):
        process = start(toy_file, folder, *options)
        assert wait_for(process, has_results, folder, least), process.wait()
        workers = [step["process"] for step in doing(folder)]
        process.signal(number)
        printed = process.wait(60)
        assert process.exit_code == 75, printed
        assert f"levelfield: stopped by {number.name}" in printed
        assert "go on with: levelfield study resume" in printed
        assert not any(map(is_running, workers))
    finish(toy_file, folder, *options)
    assert_same_tables(folder, finished)


def seconds_of_a_job(folder: Path) -> float:
    done = [json.loads(path.read_text())["seconds"] for path in folder.glob("jobs/*/*/fold*/result.json")]
    return sum(done) / len(done) if done else 1.0


def has_results(folder: Path, least: int) -> bool:
    return results(folder) >= least


def is_past(moment: float) -> bool:
    return time.monotonic() >= moment


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.processes
def test_twenty_kills_at_random_moments_change_no_byte(
    toy_file: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_numbers = random.Random(0)
    # Each comes some part of a job's time after another number of results: trials, runs and tests have their share.
    moments = sorted(random_numbers.sample(range(RESULTS), 20))
    folder = tmp_path / "killed"
    while moments:
        process = start(toy_file, folder, f"--executor.checkpoint_seconds={random_numbers.choice([0, 30])}")
        assert wait_for(process, doing, folder), process.wait()
        wait_for(process, has_results, folder, moments[0])
        wait_for(process, is_past, time.monotonic() + random_numbers.uniform(0, 1) * seconds_of_a_job(folder))
        titles = [entry["title"] for entry in doing(folder)]
        process.signal(signal.SIGKILL)
        printed = process.wait()
        if process.exit_code == -signal.SIGKILL:
            moments.pop(0)
            with capsys.disabled():
                print(f"kill {20 - len(moments)}: {results(folder)} results, in {', '.join(titles) or 'no job'}")
        else:  # it had just ended: another study is killed at this moment
            assert process.exit_code == 0, printed
            assert_same_tables(folder, finished)
            folder = folder.with_name(f"{folder.name}+")
    finish(toy_file, folder)
    assert openings(folder) == 1
    assert_same_tables(folder, finished)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.processes
def test_kills_of_two_workers_in_turn_and_of_their_study_change_no_byte(
    toy_file: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random_numbers = random.Random(1)
    options = ("--executor.workers=2", "--executor.checkpoint_seconds=0")
    folder, kills, last = tmp_path / "killed", 0, 0
    process = start(toy_file, folder, *options)
    while kills < 20:
        wait_for(process, has_results, folder, results(folder) + 1)
        wait_for(process, is_past, time.monotonic() + random_numbers.uniform(0, 0.5) * seconds_of_a_job(folder))
        # The workers go in turn; the study's own process, which tests, is each fifth.
        wait_for(process, can_be_killed, folder, process.pid, last)
        worker = victim(folder, process.pid, last)
        if worker is None:
            if process.exit_code is None and not doing(folder, process.pid):
                continue
            printed = process.wait()
            assert process.exit_code == 0, printed
            assert_same_tables(folder, finished)
            folder = folder.with_name(f"{folder.name}+")
            process = start(toy_file, folder, *options)
            continue
        kills += 1
        with capsys.disabled():
            print(f"kill {kills}: {results(folder)} results, {worker['title']}", "and the study" * (kills % 5 == 0))
        if kills % 5:
            last = worker["process"]
            os.kill(last, signal.SIGKILL)
            continue
        workers = [step["process"] for step in doing(folder)]
        process.signal(signal.SIGKILL)
        assert "died (signal 9); another takes its place" in process.wait()
        deadline = time.monotonic() + 20
        while any(map(is_running, workers)):
            assert time.monotonic() < deadline, "a worker outlives its study"
            time.sleep(0.05)
        process = start(toy_file, folder, *options)
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert openings(folder) == 1
    assert_same_tables(folder, finished)


def victim(folder: Path, study: int, last: int) -> dict[str, Any] | None:
    """What a worker does that is not the one killed before."""
    return next((step for step in doing(folder) if step["process"] not in (study, last)), None)


def can_be_killed(folder: Path, study: int, last: int) -> bool:
    """Whether there is such a worker, or the study itself has begun to test."""
    return victim(folder, study, last) is not None or bool(doing(folder, study))
