"""How many files a reader opens for one training step and one validation epoch, and what a learner imports."""

import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from lightning.pytorch import Callback
from small_fit import small_trainer
from torch import arange, nn, rand
from torch.utils.data import DataLoader, TensorDataset

import levelfield
from levelfield.losses import ContrastiveLoss
from levelfield.training.learner import MetricLearner

SOURCES = str(Path(levelfield.__file__).parent)


class Watch(Callback):
    """Notes the files of levelfield that run in the third step and in the first validation."""

    def __init__(self) -> None:
        self.of_step: set[str] = set()
        self.of_validation: set[str] = set()

    def _note(self, files: set[str] | None) -> None:
        def note(frame: FrameType, event: str, arg: Any) -> None:
            if frame.f_code.co_filename.startswith(SOURCES):
                files.add(frame.f_code.co_filename.removeprefix(SOURCES))

        sys.setprofile(note if files is not None else None)

    def on_train_batch_start(self, trainer: Any, learner: Any, batch: Any, batch_idx: int) -> None:
        self._note(self.of_step if batch_idx == 2 else None)  # that of the next step ends it

    def on_validation_start(self, trainer: Any, learner: Any) -> None:
        self._note(self.of_validation)

    def on_validation_end(self, trainer: Any, learner: Any) -> None:
        self._note(None)


class Trunk(nn.Linear):
    num_features = 8


@pytest.mark.usefixtures("quiet")
def test_a_step_runs_nine_files_and_a_validation_twelve() -> None:
    rows = TensorDataset(rand(64, 8), arange(64) % 8)
    loader, watch = DataLoader(rows, batch_size=16), Watch()
    learner = MetricLearner(Trunk(8, 8), loss=ContrastiveLoss(), embedding_size=4)
    small_trainer(watch, max_epochs=1, log_every_n_steps=1).fit(learner, loader, loader)
    assert "/training/learner.py" in watch.of_step & watch.of_validation
    assert len(watch.of_step) <= 9, watch.of_step
    assert len(watch.of_validation) <= 12, watch.of_validation


@pytest.mark.processes
def test_a_learner_imports_few_modules() -> None:
    code = (
        "import sys; from levelfield import MetricLearner; print(sum(m.startswith('levelfield') for m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= 60
