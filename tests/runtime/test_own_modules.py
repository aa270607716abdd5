"""A file in the working directory replaces no installed module, and one's own modules are found there."""

import subprocess
import sys

import pytest
from tiny_fit import TINY
from toy_study import TOY

PLANTED = ("pytorch_metric_learning", "torch", "yaml", "timm", "rich", "traceback", "json", "fcntl")


@pytest.fixture
def folder(tmp_path):
    """A working directory with planted modules that tell when they are run, and a loss of one's own."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text("open('planted', 'a').write(__name__)\nraise ImportError('planted')\n")
    (tmp_path / "my_loss.py").write_text(
        "from levelfield.losses import ContrastiveLoss\n\n\nclass MyLoss(ContrastiveLoss):\n    pass\n"
    )
    return tmp_path


def started(folder, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )


@pytest.mark.processes
def test_fit_finds_its_own_loss_and_none_of_the_planted_modules(folder):
    done = started(folder, "-m", "levelfield", "fit", *TINY, "--model.loss", "my_loss.MyLoss")
    assert done.returncode == 0, done.stderr
    assert "best validation" in done.stdout
    assert not (folder / "planted").exists()


@pytest.mark.processes
def test_a_loss_of_an_absent_library_is_not_taken_from_the_working_directory_instead(folder):
    words = ["--model.loss", "pytorch_metric_learning.losses.ContrastiveLoss"]
    started(folder, "-m", "levelfield", "fit", *TINY, *words, "--trainer.max_epochs", "1")
    assert not (folder / "planted").exists()


@pytest.mark.processes
def test_a_worker_runs_no_planted_module(folder):
    (folder / "toy.yaml").write_text(TOY)
    small = ["--search.trials", "0", "--runs", "1", "--trainer.max_epochs", "1", "--executor.workers", "2"]
    words = ["study", "run", "toy.yaml", "--add-method", "my_loss.MyLoss", *small]
    done = started(folder, "-m", "levelfield", *words)
    assert done.returncode == 0, done.stderr
    assert "my_loss" in done.stdout
    assert not (folder / "planted").exists()
