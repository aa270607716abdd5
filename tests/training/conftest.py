"""Fixtures for the tests of trainings; files of `callbacks` import the modules that lie here."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_fit import TINY

from levelfield.cli.main import main


@pytest.fixture(scope="session")
def contrastive_fit(shared: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder of a tiny fit of one epoch. Copy it before a change."""
    words = ["fit", *TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]

    def fit(folder: Path) -> None:
        assert main([*words, "--output", str(folder)]) == 0

    return shared("contrastive_fit", fit) / "fit/Glyphs-ContrastiveLoss/0"


@pytest.fixture(scope="session")
def checkpoint(contrastive_fit: Path) -> dict:
    """What its checkpoint holds."""
    return torch.load(contrastive_fit / "best.ckpt", weights_only=True)
