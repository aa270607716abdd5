"""Every shipped method trains 50 steps on letters and improves validation MAP@R over the start."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Callback

from levelfield.core.configuration import merge
from levelfield.training.build import build
from levelfield.training.settings import DEFAULT_TRUNK

FILES = sorted((Path(__file__).parents[2] / "configs" / "method").glob("*.yaml"))


BASE = f"""
trainer: {{accelerator: cpu, max_epochs: 1, logger: false, num_sanity_val_steps: 0}}
model: {{trunk: {DEFAULT_TRUNK}}}
data:
  dataset: {{class_path: levelfield.data.datasets.Glyphs, init_args: {{num_classes: 80}}}}
  transforms: {{crop_size: 64, resize: 64, scale: [0.6, 1.0], horizontal_flip: false}}
  steps_per_epoch: 50
"""


class Losses(Callback):
    """Keeps every step's loss."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.values.append(float(outputs["loss"]))


@pytest.mark.full
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_trains_the_pretrained_trunk_in_the_learner(file, tmp_path):
    torch.manual_seed(0)
    config = merge(yaml.safe_load(BASE), yaml.safe_load(file.read_text()))
    training = build(config, tmp_path, progress=False)
    losses = Losses()
    trainer, parts = training.trainer, {"model": training.model, "datamodule": training.datamodule}
    trainer.callbacks.append(losses)
    (before,) = trainer.validate(**parts, verbose=False)
    trainer.fit(**parts)
    (after,) = trainer.validate(**parts, verbose=False)
    assert len(losses.values) == 50
    assert all(math.isfinite(value) for value in losses.values)
    assert after["val/map_at_r"] > before["val/map_at_r"]
