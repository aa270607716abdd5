"""Embedding a whole loader outside of a Trainer."""

import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from levelfield.data import GroceryStore, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner


def test_embedding_leaves_every_module_in_its_mode():
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), loss=ContrastiveLoss(), embedding_size=8)
    modes = [module.training for module in learner.modules()]
    assert True in modes, "the learner trains"
    assert False in modes, "its batch norm is frozen"
    torch.manual_seed(0)
    images, labels = torch.rand(7, 3, 32, 32), torch.arange(7)
    loader = DataLoader(TensorDataset(images, labels, labels + 10), batch_size=3)
    for module in (learner.trunk, learner):
        embedded = embed(module, loader)
        assert [part.training for part in learner.modules()] == modes
    torch.testing.assert_close(embedded.embeddings, learner.eval()(images).detach())
    assert embedded.labels.tolist() == list(range(7))
    assert embedded.index.tolist() == list(range(10, 17))


def test_ctrl_c_leaves_no_thread_behind(data_root: Path) -> None:
    class Interrupted(torch.nn.Identity):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    transforms = ImageTransforms(24, 32)
    data = MetricDataModule(GroceryStore(data_root), transforms=transforms, cache=False, eval_batch_size=4)
    data.setup("fit")
    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        embed(Interrupted(), data.val_dataloader())
    assert threading.enumerate() == before
