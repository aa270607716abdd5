"""Which files of levelfield a result depends on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import levelfield
from levelfield.storage.provenance import NO_NUMBERS, code_version, computing_files

PACKAGE = Path(levelfield.__file__).parent


def test_a_loss_is_a_computing_file_and_the_report_is_not(tmp_path: Path) -> None:
    def edited(*names: str) -> str:
        copy = Path(shutil.copytree(PACKAGE, tmp_path / "_".join([*names, "copy"]).replace("/", "_")))
        for name in names:
            with open(copy / name, "a") as file:
                file.write("# another line\n")
        return computing_files(copy)

    here = computing_files(PACKAGE)
    assert edited() == here, "wherever the package lies"
    assert edited("report/page.py", "cli/main.py", "analysis/status.py", "losses/arcface.pyc", "py.typed") == here
    making_numbers = ("losses/arcface.py", "data/samplers/base.py", "study/search/suggest.py", "training/learner.py")
    for name in (*making_numbers, "losses/a_new_one.py"):
        assert edited(name) != here


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


def test_the_files_that_make_no_number_exist() -> None:
    assert [name for name in NO_NUMBERS if not (PACKAGE / name).exists()] == []
