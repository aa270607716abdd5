"""CONTRIBUTING.md says what one touches to add a part: true of a dummy loss, added to a copy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

ROWS = dict(re.findall(r"^\| ([a-z ]+) \| (`src/.*) \|$", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.M))
LOSS = """
from levelfield.losses.contrastive import ContrastiveLoss


class DummyLoss(ContrastiveLoss):
    '''Nothing.

        L = 0

    Cost: B^2. When: never.
    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    '''

    search_space = {"neg_margin": {"start": 0.5, "low": 0.1, "high": 1.0, "scale": "linear"}}
"""
# What the copy's own test of the loss is: here, that the command line finds it.
FINDS = """
def test_the_command_line_finds_it(run):
    words = ("--config=configs/data/glyphs.yaml", "--model.loss=DummyLoss")
    assert "DummyLoss" in run("fit", *words, "--print_config")[1]
"""


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def files_of(cells: str) -> list[str]:
    return re.findall(r"`(\S+/\S+)`", cells)


def test_the_folders_of_the_table_are_there() -> None:
    parts = {"loss", "miner", "regularizer", "embedder", "data set", "sampler", "metric", "figure", "executor"}
    assert set(ROWS) == parts
    assert all((REPOSITORY / path).parent.is_dir() for cells in ROWS.values() for path in files_of(cells))


@pytest.mark.full
@pytest.mark.processes
def test_the_table_of_contributing_is_what_happens(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("src", "tests", "docs", "configs", "scripts"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, copy)
    before = contents(copy)
    touched = [path.replace("NAME", "dummy_loss") for path in files_of(ROWS["loss"])]
    file, exported, test = touched
    (copy / file).write_text(LOSS)
    (copy / test).write_text(FINDS)
    with (copy / exported).open("a") as names:
        names.write("from levelfield.losses.dummy_loss import DummyLoss\n__all__ += ['DummyLoss']\n")
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}

    def run(*words: str) -> None:
        done = subprocess.run([sys.executable, "-B", *words], cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    run("scripts/lists.py")
    changed = {path for path, content in contents(copy).items() if content != before.get(path)}
    assert changed == {*touched, "docs/losses.md", "src/levelfield/cli/fit.txt"}
    which = ("-p", "no:cacheprovider", "-m", "not full", "-k", "dummy or list or configuration")
    run("-m", "pytest", *which, "tests/scripts/test_lists_and_words.py", test)
