"""A study that is killed at any moment, with workers and loaders, ends with the bytes of one that was left alone."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from forked import Forked, children
from study_engine import results, study_process, tables
from toy_study import run_study

from levelfield.core.ledger import LEDGER
from levelfield.core.processes import is_running
from levelfield.study import seal
from levelfield.study.lock import running_process
from levelfield.study.rows import load_spec

# The toy study: 23 jobs and the test scores of 5 runs.
RESULTS = 27


def evaluations(folder: Path) -> int:
    return (folder / LEDGER).read_text().count('"event": "evaluated"')


def finish(file: Path, folder: Path, *options: str) -> None:
    process = study_process(file, folder, *options)
    printed = process.wait()
    assert process.exit_code == 0, printed


@pytest.mark.slow
@pytest.mark.processes
def test_kills_and_a_ctrl_c_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    jobs = folder / "jobs"

    def stopped(moment: Path, how: signal.Signals = signal.SIGKILL) -> Forked:
        process = study_process(toy_file, folder)
        process.wait_for(moment.exists)
        process.signal(how)
        process.wait()
        return process

    # In a trial's training: its logger has begun to write.
    stopped(jobs / "contrastive/trial1/fold1/metrics.csv")
    assert not (jobs / "contrastive/trial1/fold1/result.json").exists()
    assert (jobs / "contrastive/trial1/fold0/result.json").exists()
    # While a run's job is being set up or trained.
    process = stopped(jobs / "arcface/run0/fold0/config.yaml", signal.SIGINT)
    assert process.exit_code == 130
    assert len(results(folder, "*/*/*")) >= 16
    assert f"continue with: levelfield study run {toy_file}" in process.printed().splitlines()[-1]
    # Between a checkpoint and its result.
    stopped(jobs / "arcface/run1/fold0/best.ckpt")
    # While the test classes are evaluated.
    stopped(jobs / "contrastive/run0/fold1/tested.safetensors")
    assert evaluations(folder) == 1
    assert not (jobs / "arcface/run1/test/result.json").exists()

    finish(toy_file, folder)
    assert evaluations(folder) == 1
    assert tables(folder) == tables(finished)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("count", ["1", "2"])
def test_twenty_kills_at_random_moments_change_no_byte(toy_file, finished, tmp_path, count):
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


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(("workers", "loaders", "how"), [(2, 2, signal.SIGTERM), (1, 2, signal.SIGKILL)])
def test_workers_and_loaders_end_with_their_study_and_change_no_byte(workers, loaders, how, toy_file, tmp_path):
    content = yaml.safe_load(toy_file.read_text())
    content |= {"name": "one", "spaces": {}, "search": {}, "runs": 1}
    content["methods"] = {"arcface": content["methods"]["arcface"]}
    content["base"][0]["data"] |= {"steps_per_epoch": 10}  # long enough to be killed in
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(content))
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "study"
    run_study(undisturbed, load_spec(tmp_path / "one.yaml"))
    options = [f"--executor.workers={workers}", f"--data.num_workers={loaders}"]
    study = study_process(tmp_path / "one.yaml", folder, *options)
    study.wait_for(lambda: list(folder.glob("jobs/arcface/*/*/metrics.csv")))
    expected = (workers if workers > 1 else 0) + loaders  # loaders of one worker at least
    study.wait_for(lambda: len(children(study.pid)) >= expected)
    below = children(study.pid)
    study.signal(how)
    study.wait()
    deadline = time.monotonic() + 10
    while any(map(is_running, below)):
        assert time.monotonic() < deadline, "a worker or a loader outlives its study"
        time.sleep(0.01)
    assert running_process(folder) is None
    finish(tmp_path / "one.yaml", folder, *options)
    assert tables(folder) == tables(undisturbed)


@pytest.mark.processes
def test_the_loaders_of_the_test_stage_do_not_add_up(toy_file, copy, monkeypatch):
    """Between the scores of two methods, no loader of the first one is left."""
    folder = copy
    (folder / "ledger.jsonl").write_text((folder / "ledger.jsonl").read_text().splitlines(keepends=True)[0])
    for path in (*folder.glob("jobs/*/run1/*/tested.safetensors"), *folder.glob("jobs/*/run1/test/result.json")):
        path.unlink()
    alive: list[int] = []
    score = seal.score_folds

    def counted(*folds):
        alive.append(len(children(os.getpid())))
        return score(*folds)

    before = len(children(os.getpid()))
    monkeypatch.setattr(seal, "score_folds", counted)
    run_study(folder, load_spec(toy_file, {"data.num_workers": 2}))
    assert alive == [before] * 2
