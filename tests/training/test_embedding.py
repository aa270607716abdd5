"""Embedding a whole loader outside of a Trainer."""

import threading
from pathlib import Path

import pytest
import torch
from PIL import Image
from small_fit import small_learner, small_trunk
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.data import GroceryStore, ImageFolder, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.models import TimmTrunk
from levelfield.training.embed import embed
from levelfield.training.features import TrunkExtractor


def test_embedding_leaves_every_module_in_its_mode():
    learner = small_learner(embedding_size=8)
    modes = [module.training for module in learner.modules()]
    assert True in modes, "the learner trains"
    assert False in modes, "its batch norm is frozen"
    images, labels = torch.rand(7, 3, 32, 32), torch.arange(7)
    loader = DataLoader(TensorDataset(images, labels, labels + 10), batch_size=3)
    for module in (learner.trunk, learner):
        embedded = embed(module, loader)
        assert [part.training for part in learner.modules()] == modes
    torch.testing.assert_close(embedded.embeddings, learner.eval()(images).detach())
    assert embedded.labels.tolist() == list(range(7))
    assert embedded.index.tolist() == list(range(10, 17))


def test_an_image_that_cannot_be_opened_leaves_every_module_in_its_mode(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}").mkdir()
        for name in ("a.png", "b.png"):
            Image.new("RGB", (32, 32)).save(tmp_path / f"{number}" / name)
    (tmp_path / "3" / "b.png").write_bytes(b"no image")
    transforms = ImageTransforms(crop_size=32, resize=32)
    data = MetricDataModule(ImageFolder(folder=tmp_path), fold="none", transforms=transforms, cache=False)
    learner = small_learner(embedding_size=8)
    modes = [module.training for module in learner.modules()]
    data.setup("test")
    with pytest.raises(UserError, match=r"b\.png"):
        embed(learner, data.eval_dataloader(data.test_subset))
    assert [module.training for module in learner.modules()] == modes


def test_a_learner_in_another_precision_embeds_what_a_loader_gives():
    learner = small_learner(embedding_size=8)
    images = torch.rand(5, 3, 32, 32)
    expected = embed(learner, DataLoader(TensorDataset(images, torch.arange(5)))).embeddings
    learner.to(torch.bfloat16)
    embedded = embed(learner, DataLoader(TensorDataset(images, torch.arange(5)))).embeddings
    torch.testing.assert_close(embedded, expected, atol=0.05, rtol=0)
    (features,) = TrunkExtractor(learner.trunk, torch.device("cpu"))(DataLoader(images, batch_size=5))
    assert features.dtype == "float32"
    from_features = [{"features": torch.from_numpy(features), "labels": torch.arange(5)}]
    torch.testing.assert_close(embed(learner, DataLoader(from_features, batch_size=None)).embeddings, embedded)


def embed_all(module: nn.Module, images: torch.Tensor) -> None:
    embed(module, DataLoader(TensorDataset(images, torch.arange(len(images)))))


def extract_all(module: TimmTrunk, images: torch.Tensor) -> None:
    list(TrunkExtractor(module, torch.device("cpu"))(DataLoader(images, batch_size=3)))


@pytest.mark.parametrize("use", [embed_all, extract_all])
def test_what_embedding_has_moved_to_a_device_can_be_trained(use, monkeypatch):
    trunk = small_trunk()
    # To move to another device is to copy each tensor; on the CPU nothing moves.
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module._apply(torch.clone))
    images = torch.rand(4, 3, 32, 32)
    use(trunk, images)
    assert not any(tensor.is_inference() for tensor in (*trunk.parameters(), *trunk.buffers()))
    trunk(images).sum().backward()
    assert all(weight.grad is not None for weight in trunk.parameters())


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
