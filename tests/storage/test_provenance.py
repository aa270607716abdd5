"""Which code computed a result."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import levelfield
from levelfield.storage.provenance import code_version, computing_files


def test_every_source_of_a_package_counts_wherever_it_is(tmp_path: Path) -> None:
    package = Path(levelfield.__file__).parent / "losses"

    def edited(name: str) -> str:
        copy = Path(shutil.copytree(package, tmp_path / name / "losses"))
        with open(copy / name, "a") as file:
            file.write("# another line\n")
        return computing_files(copy)

    here = computing_files(package)
    assert edited("arcface.pyc") == here
    assert here not in {edited("arcface.py"), edited("a_new_one.py")}


def test_a_look_at_the_checkout_writes_nothing_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        settings = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", *settings, "-C", str(tmp_path), *words], check=True, capture_output=True)

    module = tmp_path / "__init__.py"
    module.write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    index = (tmp_path / ".git" / "index").read_bytes()
    os.utime(module, (1e9, 1e9))  # git would note the new time
    monkeypatch.setattr(levelfield, "__file__", str(module))
    assert code_version.__wrapped__()["modified"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == index
