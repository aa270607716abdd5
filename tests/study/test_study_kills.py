"""A study that is killed at any moment, or whose worker is, ends with the bytes of one that was left alone."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from printed import numbers
from study_engine import begun_jobs, results, study_process, tables, workers

from levelfield.core.ledger import LEDGER
from levelfield.runtime.processes import is_running

# The toy study: 22 jobs and the test scores of 5 runs.
RESULTS = 27


def evaluations(folder: Path) -> int:
    return (folder / LEDGER).read_text().count('"event": "evaluated"')


def finish(file: Path, folder: Path, *options: str) -> str:
    process = study_process(file, folder, *options)
    printed = process.wait()
    assert process.exit_code == 0, printed
    return printed


@pytest.mark.slow
@pytest.mark.processes
def test_kills_and_a_ctrl_c_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    jobs = folder / "jobs"

    # In the middle of a trial's training: its logger has begun to write.
    process = study_process(toy_file, folder)
    process.wait_for((jobs / "contrastive/trial1/fold1/metrics.csv").exists)
    process.signal(signal.SIGKILL)
    process.wait()
    assert not (jobs / "contrastive/trial1/fold1/result.json").exists()
    assert (jobs / "contrastive/trial1/fold0/result.json").exists()

    # Ctrl-C, while a run's job is being set up or trained.
    process = study_process(toy_file, folder)
    process.wait_for((jobs / "arcface/run0/fold0/config.yaml").exists)
    process.signal(signal.SIGINT)
    printed = process.wait()
    assert process.exit_code == 130
    assert numbers(printed.splitlines()[-1])[:2] == [16, 22], "jobs done, of all"

    # Between a checkpoint and its result.
    process = study_process(toy_file, folder)
    process.wait_for((jobs / "arcface/run1/fold0/best.ckpt").exists)
    process.signal(signal.SIGKILL)
    process.wait()

    # While the test classes are evaluated.
    process = study_process(toy_file, folder)
    process.wait_for((jobs / "contrastive/run0/fold1/tested.safetensors").exists)
    process.signal(signal.SIGKILL)
    process.wait()
    assert evaluations(folder) == 1
    assert not (jobs / "arcface/run1/test/result.json").exists()

    finish(toy_file, folder)
    assert evaluations(folder) == 1
    assert tables(folder) == tables(finished)


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_worker_affects_its_own_job_only(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "worker_killed"
    process = study_process(toy_file, folder, "--executor.workers", "2")
    process.wait_for(lambda: len(results(folder)) >= 4 and begun_jobs(folder))
    killed = workers(process)
    assert len(killed) == 2
    process.wait_for(lambda: begun_jobs(folder))
    os.kill(killed[0], signal.SIGKILL)
    process.wait_for(lambda: len(results(folder)) >= 8)
    assert is_running(killed[1])
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert printed.count("its process died") <= 1  # none where it was between two jobs
    assert tables(folder) == tables(finished)
    again = [path for path in results(folder) if "earlier_attempts" in json.loads(path.read_text())]
    again = {"pretrained" if "pretrained" in path.parts else path for path in again}  # its folds are one job
    said = [line for line in printed.splitlines() if "tried again" in line]
    of_jobs = [line for line in said if "suggest a setting" not in line]  # a suggestion has no result to say it in
    assert len(again) == len(of_jobs)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("count", ["1", "2"])
def test_twenty_kills_at_random_moments_change_no_byte(
    toy_file: Path, finished: Path, tmp_path: Path, count: str
) -> None:
    random_numbers = random.Random(int(count))
    moments = sorted(random_numbers.sample(range(RESULTS), 20))
    folder = tmp_path / "killed"
    for moment in moments:
        process = study_process(toy_file, folder, "--executor.workers", count)
        while process.exit_code is None and len(results(folder, "*/*/*")) < moment:
            time.sleep(0.02)
        time.sleep(random_numbers.random() * 2)
        process.signal(signal.SIGKILL)
        process.wait()
    finish(toy_file, folder, "--executor.workers", count)
    assert evaluations(folder) == 1
    assert tables(folder) == tables(finished)
    assert not list(folder.rglob(".*.tmp"))
