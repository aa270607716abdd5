"""A resumed fit draws what an uninterrupted one draws, also if loader processes open its batches."""

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from small_fit import small_learner, small_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.data import MPerClassBatchSampler
from levelfield.models.trunks import ModuleTrunk

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


class Drawn(Callback):
    """The indices of each batch, by epoch."""

    def __init__(self) -> None:
        self.epochs = defaultdict(list)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.epochs[trainer.current_epoch].append(batch[2].tolist())


def loaders(way: str) -> dict:
    images, labels = torch.rand(24, 3, 8, 8), torch.arange(24) // 4
    batches = MPerClassBatchSampler(labels[:16], batch_size=4, samples_per_class=2, num_batches=3)
    given = {"batch_sampler": batches} if way == "batch_sampler" else {"sampler": batches, "batch_size": None}
    samples = TensorDataset(images, labels, torch.arange(24))
    held_out = DataLoader(TensorDataset(images[16:], labels[16:]), batch_size=8)
    return {"train_dataloaders": DataLoader(samples, num_workers=1, **given), "val_dataloaders": held_out}


def fit(folder: Path, epochs: int, given: dict, **resume) -> tuple[dict[int, list[list[int]]], str]:
    trunk = ModuleTrunk(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), 12)
    drawn = Drawn()
    trainer = small_trainer(drawn, max_epochs=epochs, default_root_dir=folder, enable_checkpointing=True)
    trainer.fit(small_learner(trunk=trunk), **given, **resume)
    return drawn.epochs, trainer.checkpoint_callback.best_model_path


def test_a_resumed_fit_draws_the_batches_of_its_epoch_and_a_second_one_begins_again(tmp_path: Path) -> None:
    given = loaders("batch_sampler")
    first, checkpoint = fit(tmp_path / "first", 1, given)
    resumed, _ = fit(tmp_path / "resumed", 2, given, ckpt_path=checkpoint, weights_only=True)
    assert list(resumed) == [1]
    assert first[0] != resumed[1]
    assert fit(tmp_path / "through", 2, loaders("sampler"))[0] == {**first, **resumed}
    assert fit(tmp_path / "again", 2, given)[0] == {**first, **resumed}
