"""One learner, its data and its trainer, small and quiet."""

from collections import Counter
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.training.learner import MetricLearner

WAITS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.item, torch.ops.aten.is_nonzero)  # two in inference mode


class Looks(TorchDispatchMode):
    """Counts, for each step, how often a number is read from a tensor, for which a GPU has to finish."""

    def __init__(self):
        super().__init__()
        self.step, self.counts = 0, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[self.step] += func.overloadpacket in WAITS
        return func(*args, **(kwargs or {}))


def small_trunk(name: str = "test_resnet", **arguments: Any) -> TimmTrunk:
    return TimmTrunk(name, weights=None, **arguments)


def small_data(num_classes: int = 40, **arguments: Any) -> MetricDataModule:
    """Half of the letters are for training, a fourth of them validates."""
    transforms = ImageTransforms(crop_size=32, resize=32, scale=(0.6, 1.0), horizontal_flip=False)
    given = {"steps_per_epoch": 4, "transforms": transforms, **arguments}
    return MetricDataModule(Glyphs(num_classes=num_classes, image_size=32), **given)


def small_learner(loss: Any = ContrastiveLoss, kind: type[MetricLearner] = MetricLearner, **arguments: Any) -> Any:
    torch.manual_seed(0)
    return kind(**{"trunk": small_trunk(), "loss": loss, "embedding_size": 16, **arguments})


def small_trainer(*callbacks: Callback, **arguments: Any) -> Trainer:
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "max_epochs": 1, "num_sanity_val_steps": 0, "logger": False, **quiet, **arguments}
    return Trainer(callbacks=list(callbacks), **given)


def small_config(**sections: dict[str, Any]) -> dict[str, Any]:
    """The same as a job's configuration; `sections` lie over it."""
    trunk = {"class_path": "TimmTrunk", "init_args": {"name": "test_resnet", "weights": None}}
    letters = {"class_path": "Glyphs", "init_args": {"num_classes": 32, "image_size": 32}}
    images = {"crop_size": 32, "resize": 32, "scale": [0.6, 1.0], "horizontal_flip": False}
    config = {
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1},
        "model": {"trunk": trunk, "loss": "ContrastiveLoss", "embedding_size": 16},
        "data": {"dataset": letters, "transforms": images, "steps_per_epoch": 2, "batch_size": 16},
    }
    return {name: section | sections.get(name, {}) for name, section in config.items()}
