"""Small studies that are run once: copies of them go on where they are."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from study_engine import PLAIN, run_file, small_study

from levelfield.study.archive import write_archive


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def small_finished(shared: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder of a finished SMALL in `out`; not to be changed."""

    def make(folder: Path) -> None:
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.syspath_prepend(folder)
            run_file(small_study(folder), folder / "out")

    return shared("small", make)


@pytest.fixture
def small(here: Path, small_finished: Path) -> Path:
    """The file of SMALL in the working directory, its finished study in `out`."""
    shutil.copytree(small_finished / "out", here / "out")
    return small_study(here)


@pytest.fixture(scope="session")
def archived(shared: Callable[[str, Callable[[Path], None]], Path]) -> tuple[Path, Path]:
    """A finished study without a module of one's own, and its archive."""

    def make(folder: Path) -> None:
        folder.mkdir()
        write_archive(run_file(small_study(folder, text=PLAIN), folder / "out"), folder / "study.tar.xz")

    folder = shared("archived", make)
    return folder / "out", folder / "study.tar.xz"
