"""Fixtures for the tests that train: a tiny trunk, few letters, one thread."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from filelock import FileLock
from no_skips_in_ci import pytest_make_collect_report, pytest_runtest_makereport, real_data  # noqa: F401 # hooks of all tests
from pretended_gpu import ON_CUDA
from tiny_fit import TINY
from toy_study import copy, finished, spec, toy_file  # noqa: F401 # fixtures for the tests of studies and of their reports

from levelfield.cli.main import main

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
# nohup, and a script's background, have them ignored by all that they start: by what tests stop with them, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_cache_is_left(tmp_path_factory):
    """Pictures are decoded into a cache of the session's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVELFIELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """These trunks are too small to gain from two, and two lose much where something else runs."""
    torch.set_num_threads(1)


CPU_SECONDS = 8  # three on a quiet core of ours; a busy machine or a slower one may take twice as long
DEAR = {"slow", "processes", "full", "gpu"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """An unmarked test that computes for long fails, with the processes that it waited for; fixtures do not count."""
    before, modules = sum(os.times()[:4]), len(sys.modules)
    result = yield
    took = sum(os.times()[:4]) - before
    imports = len(sys.modules) - modules > 50  # the first test that needs a large package pays for it
    if took > CPU_SECONDS and not imports and not DEAR & {mark.name for mark in item.iter_markers()}:
        pytest.fail(f"took {took:.1f} seconds of CPU time, more than {CPU_SECONDS}: make it smaller, or mark it `full`")
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first, so that no core waits for the other at the end."""
    slow = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a fixture draws depends on no test before it, not even on the seed that a command has set."""
    torch.manual_seed(0)
    os.environ.pop("PL_GLOBAL_SEED", None)


@pytest.fixture(autouse=True)
def draws_of_its_own():
    """Nor does a test depend on which fixtures were made for it."""
    pytest_runtest_setup()


# The imported modules that lie in no test's folder, each looked at once: there are thousands of them.
STAYING: dict[str, ModuleType] = {}


@pytest.fixture(autouse=True)
def own_modules_end_with_their_test(tmp_path_factory, monkeypatch):
    """Another test's `my_loss.py` is another loss: neither the module nor its folder stays to be found."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if STAYING.get(name) is module:
            continue
        file = getattr(getattr(module, "__spec__", None), "origin", None)  # which no test patches
        if file and Path(file).is_relative_to(tmp_path_factory.getbasetemp()):
            del sys.modules[name]
        else:
            STAYING[name] = module


@pytest.fixture
def quiet():
    """What Lightning tells of a plain Trainer and a tiny fit, which `levelfield fit` keeps to itself."""
    with warnings.catch_warnings():
        notices = ("does not have many workers", "in eval mode", "LeafSpec", "logging interval", "GPU available but")
        warnings.filterwarnings("ignore", f".*({'|'.join(notices)}).*")
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of named data sets, where the real data lie."""
    return real_data()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, Callable[[Path], None]], Path]:
    """`shared(name, make)`: a folder that `make(folder)` fills once for all test processes. Copy it before a change."""
    session = tmp_path_factory.getbasetemp()
    place = (session if worker_id == "master" else session.parent) / "shared"
    place.mkdir(exist_ok=True)

    def shared(name: str, make: Callable[[Path], None]) -> Path:
        with FileLock(place / f"{name}.lock"):
            if not (place / f"{name}.made").exists():  # a second start would write beside what others copy
                make(place / name)
                (place / f"{name}.made").touch()
        return place / name

    return shared


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_CUDA)])
def device(request) -> str:
    """Where a test that compares a device with the CPU in float64 computes: on a GPU too, in `make test-gpu`."""
    return request.param


@pytest.fixture
def ranked_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The device of the queries, each time that queries are scored."""
    from levelfield.metrics.ranking import Ranking

    devices, score = [], Ranking.score

    def scored(ranking, *args):
        devices.append(ranking.gallery_GD.device.type)
        return score(ranking, *args)

    monkeypatch.setattr(Ranking, "score", scored)
    return devices


@pytest.fixture
def tiny() -> list[str]:
    """Options that make a fit tiny."""
    return list(TINY)


@pytest.fixture
def run(capsys):
    """Runs the command line in this process: (exit code, what it printed, what it complained)."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def fitted(shared, tmp_path_factory) -> Path:
    """The folder of a tiny ArcFace fit on fold 2, a copy for each file of tests."""
    words = ["fit", *TINY, "--model.loss", "ArcFaceLoss", "--model.loss.margin", "20", "--data.fold", "2", "--output"]

    def fit(folder: Path) -> None:
        assert main([*words, str(folder)]) == 0

    made = shared("fitted", fit) / "fit" / "Glyphs-ArcFaceLoss" / "0"
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("fitted") / "0"))
