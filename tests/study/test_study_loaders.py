"""Whatever the workers and loaders: a study killed and resumed ends with the same bytes, and nothing outlives it."""

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from forked import Forked, children, levelfield
from tiny_fit import TINY
from toy_study import run_study

from levelfield.runtime.processes import is_running
from levelfield.study import seal
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec

TABLES = ("results.csv", "summary.csv")
# Long enough to be killed in: loaders fetch ahead, and a job ends in a moment otherwise.
LONG = {"steps_per_epoch": 10}
SIGNALS = itertools.cycle([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
# The kills of test_engine_kills.py are of one process without loaders.
COMBINATIONS = [
    pytest.param(workers, loaders, next(SIGNALS), marks=[] if workers == loaders == 2 else pytest.mark.full)
    for workers in (1, 2)
    for loaders in (0, 2)
]


@pytest.fixture(scope="module")
def small_file(toy_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One method, no search, one run: 4 jobs."""
    content = yaml.safe_load(toy_file.read_text())
    content |= {"name": "small", "spaces": {}, "search": {}, "runs": 1}
    content["methods"] = {"arcface": content["methods"]["arcface"]}
    content["base"][0]["data"] |= LONG
    path = tmp_path_factory.mktemp("small") / "small.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def undisturbed(small_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "small"
    run_study(folder, load_spec(small_file))
    return folder


def wait_until(moment: Callable[[], object], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not moment():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("workers", "loaders", "how"), COMBINATIONS)
def test_workers_and_loaders_end_with_their_study_and_change_no_byte(
    workers: int, loaders: int, how: signal.Signals, small_file: Path, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    words = ["study", "run", str(small_file), "--output", str(folder)]
    words += [f"--executor.workers={workers}", f"--data.num_workers={loaders}"]
    study = Forked(levelfield(*words), tmp_path / "log")

    def trains() -> bool:
        assert study.exit_code is None, study.wait()
        return bool(list(folder.glob("jobs/arcface/*/*/metrics.csv")))

    wait_until(trains, 120, "no job was ever trained")
    # Training loaders and validation loaders, of one worker at least.
    expected = (workers if workers > 1 else 0) + loaders
    wait_until(lambda: len(children(study.pid)) >= expected or study.exit_code is not None, 60, "no loader")
    below = children(study.pid)
    study.signal(how)
    study.wait()
    assert len(below) >= expected
    wait_until(lambda: not any(map(is_running, below)), 10, "a worker or a loader outlives its study")
    assert StudyFolder.begun(folder).holder() is None

    study = Forked(levelfield(*words), tmp_path / "log")
    printed = study.wait(180)
    assert study.exit_code == 0, printed
    for name in TABLES:
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.full)])
def test_the_loaders_of_a_fit_that_is_killed_end(how: signal.Signals, tmp_path: Path) -> None:
    words = [
        "fit",
        *TINY,
        "--model.loss",
        "ContrastiveLoss",
        "--output",
        str(tmp_path),
        "--data.num_workers",
        "2",
        "--data.steps_per_epoch",
        "10000",
    ]
    fit = Forked(levelfield(*words), tmp_path / "log", tmp_path)

    def loads() -> bool:
        assert fit.exit_code is None, fit.wait()
        return len(children(fit.pid)) >= 2

    wait_until(loads, 120, "no loader was ever started")
    time.sleep(1)  # the loaders have begun
    loaders = children(fit.pid)
    fit.signal(how)
    fit.wait()
    wait_until(lambda: not any(map(is_running, loaders)), 10, "a loader outlives its fit")


@pytest.mark.processes
def test_the_loaders_of_the_test_stage_do_not_add_up(
    toy_file: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the scores of two methods, no loader of the first one is left."""
    folder = Path(shutil.copytree(finished, tmp_path / "study"))
    for path in (folder / "ledger.jsonl", *folder.glob("jobs/*/*/test/result.json"), *folder.rglob("*.safetensors")):
        if path.name != "pca.safetensors":
            path.unlink()
    alive: list[int] = []
    write = seal.TestTask.write

    def counted(self, *rest):
        alive.append(len(children(os.getpid())))
        return write(self, *rest)

    before = len(children(os.getpid()))
    monkeypatch.setattr(seal.TestTask, "write", counted)
    run_study(folder, load_spec(toy_file, {"data.num_workers": 2}))
    assert alive == [before] * 5
