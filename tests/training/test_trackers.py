"""A tracker whose package is missing is refused before anything is trained."""

import sys

import pytest
from refused import refused


@pytest.mark.parametrize(
    ("logger", "packages"), [("wandb", ["wandb"]), ("tensorboard", ["tensorboard", "tensorboardX"])]
)
def test_a_tracker_that_is_not_installed_is_one_line(logger, packages, tiny, run, tmp_path, monkeypatch):
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "fit"]
    refused(run(*words, "--config", f"logger/{logger}"), f"levelfield[{logger}]")
    assert not list(tmp_path.rglob("*.ckpt"))
