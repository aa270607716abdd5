"""Every shipped method trains 50 steps on letters and improves validation MAP@R over the start."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback
from loss_cases import needs_classes
from torch import nn

from levelfield import losses, miners, regularizers
from levelfield.data.datasets import Glyphs
from levelfield.metrics import retrieval_metrics
from levelfield.training.build import build
from levelfield.training.settings import DEFAULT_TRUNK

FILES = sorted((Path(__file__).parents[2] / "configs" / "method").glob("*.yaml"))
IN_A_PLAIN_LOOP = [file for file in FILES if file.stem != "cross_batch_memory"]  # a sum, which the learner makes


class Losses(Callback):
    """Keeps every step's loss."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.values.append(float(outputs["loss"]))


def merged(first: dict, second: dict) -> dict:
    both = dict(first)
    for key, value in second.items():
        both[key] = merged(both[key], value) if isinstance(both.get(key), dict) and isinstance(value, dict) else value
    return both


def config_of(file: Path) -> dict:
    """The shipped configuration on 80 letters, with the default trunk and the default rates."""
    return merged(
        {
            "trainer": {"accelerator": "cpu", "max_epochs": 1, "logger": False, "num_sanity_val_steps": 0},
            "model": {"trunk": DEFAULT_TRUNK},
            "data": {
                "dataset": {"class_path": "levelfield.data.datasets.Glyphs", "init_args": {"num_classes": 80}},
                "transforms": {"crop_size": 64, "resize": 64, "scale": [0.6, 1.0], "horizontal_flip": False},
                "steps_per_epoch": 50,
            },
        },
        yaml.safe_load(file.read_text()),
    )


def check_that_it_trains(config: dict, folder: Path) -> None:
    torch.manual_seed(0)
    training = build(config, folder, progress=False)
    losses = Losses()
    training.trainer.callbacks.append(losses)
    before = training.trainer.validate(training.model, datamodule=training.datamodule, verbose=False)[0]
    training.trainer.fit(training.model, datamodule=training.datamodule)
    after = training.trainer.validate(training.model, datamodule=training.datamodule, verbose=False)[0]
    assert len(losses.values) == 50
    assert all(math.isfinite(value) for value in losses.values)
    assert after["val/map_at_r"] > before["val/map_at_r"]


@pytest.mark.full
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_trains_the_pretrained_trunk_in_the_learner(file, tmp_path):
    check_that_it_trains(config_of(file), tmp_path)


@pytest.fixture(scope="module")
def letters() -> tuple[torch.Tensor, torch.Tensor]:
    """40 letters as dark pixels of 16 x 16, 16 typefaces each; classes 0-29 train, 30-39 validate."""
    glyphs = Glyphs(num_classes=40, image_size=32)
    index = glyphs.read_index()
    images = [np.asarray(glyphs.load(key).convert("L").resize((16, 16)), dtype=np.float32) for key in index.keys]
    return 1 - torch.tensor(np.stack(images)).flatten(1) / 255, torch.as_tensor(index.labels).long()


@pytest.mark.parametrize("file", IN_A_PLAIN_LOOP, ids=lambda file: file.stem)
def test_it_trains_in_a_plain_loop(file, letters):
    images, labels = letters
    config = yaml.safe_load(file.read_text())["model"]
    cls = getattr(losses, config["loss"]["class_path"].rpartition(".")[2])
    width = config.get("embedding_size", 32)
    sizes = {"num_classes": 30, "embedding_size": width} if needs_classes(cls) else {}
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, width))
    loss = cls(**sizes, **config["loss"]["init_args"])
    loss.set_num_classes(30)
    miner = getattr(miners, config["miner"]["class_path"].rpartition(".")[2])() if "miner" in config else None
    named = config.get("regularizer")
    regularizer = getattr(regularizers, named["class_path"].rpartition(".")[2])(**named["init_args"]) if named else None
    groups = [{"params": trunk.parameters(), "lr": 1e-3}]
    if list(loss.parameters()):
        groups.append({"params": loss.parameters(), "lr": config["loss_lr"], "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups)

    def map_at_r() -> float:
        with torch.no_grad():
            return retrieval_metrics(trunk(images[labels >= 30]), labels[labels >= 30])["map_at_r"]

    before = map_at_r()
    for _ in range(50):
        chosen = torch.randperm(30)[:8].repeat_interleave(4)
        rows = torch.stack([torch.randperm(16)[:4] for _ in range(8)]).flatten()
        embeddings = trunk(images[:480].unflatten(0, (30, 16))[chosen, rows])
        if config.get("normalize", True):
            embeddings = nn.functional.normalize(embeddings)
        value = loss(embeddings, chosen, miner(embeddings, chosen) if miner is not None else None)
        if regularizer is not None:
            points = loss.class_weights if regularizer.of == "class_weights" else embeddings
            value = value + regularizer.weight * regularizer(points)
        assert value.isfinite()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert map_at_r() > before
