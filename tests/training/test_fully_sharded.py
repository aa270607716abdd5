"""Which blocks of a trunk are gathered by themselves; what shards do to numbers is in `test_two_processes.py`."""

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

from levelfield.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import LoRA, TimmTrunk
from levelfield.training import fully_sharded
from levelfield.training.learner import MetricLearner


def test_the_large_members_of_lists_and_sequences_are_blocks_innermost_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fully_sharded, "BLOCK_WEIGHTS", 100)
    block, large = nn.Sequential(nn.Linear(10, 10)), nn.Linear(10, 10)  # 110 weights each
    stage = nn.Module()
    stage.blocks = nn.ModuleList([large, nn.Linear(3, 3)])
    network = nn.Sequential(nn.Linear(5, 5), stage, block)
    assert list(fully_sharded.large_blocks(network)) == [block[0], large, stage]


def test_synchronised_batch_norm_keeps_the_activations_of_timms_layers() -> None:
    learner = MetricLearner(TimmTrunk("test_efficientnet", weights=None), ContrastiveLoss(), embedding_size=4).eval()
    images = torch.rand(2, 3, 32, 32)
    before = learner(images)
    learner.trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", sync_batchnorm=True, logger=False)
    learner.configure_model()
    assert any(isinstance(module, nn.SyncBatchNorm) for module in learner.modules())
    torch.testing.assert_close(learner.eval()(images), before)
    assert learner.trainer.strategy._layer_sync is None  # or Lightning would convert once more, its own way
    learner.freeze_batch_norm = False
    with pytest.raises(UserError, match="on GPUs alone"):
        fully_sharded._synchronise_batch_norm(learner)


def test_an_adapter_is_refused_before_anything_is_sharded() -> None:
    trunk = TimmTrunk("test_vit", weights=None, arguments={"depth": 1})
    learner = MetricLearner(trunk, ContrastiveLoss(), embedding_size=4, adapter=LoRA(rank=1))
    learner.trainer = Trainer(accelerator="cpu", devices=1, strategy="fsdp2", logger=False)
    with pytest.raises(UserError, match=r"--model.adapter: .* give --trainer.strategy ddp"):
        learner.configure_model()


def test_a_weight_that_is_in_no_module_is_refused_before_anything_is_sharded() -> None:
    learner = MetricLearner(TimmTrunk("test_vit", weights=None), ContrastiveLoss(), embedding_size=4)
    learner.scale = nn.Parameter(torch.ones(()))
    learner.trainer = Trainer(accelerator="cpu", devices=1, strategy="fsdp2", logger=False)
    with pytest.raises(UserError, match="'scale'"):
        learner.configure_model()


def test_a_scaler_of_gradients_is_refused_before_anything_is_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = MetricLearner(TimmTrunk("test_vit", weights=None), ContrastiveLoss(), embedding_size=4)
    learner.trainer = Trainer(accelerator="cpu", devices=1, strategy="fsdp2", logger=False)
    monkeypatch.setattr(Trainer, "precision", "16-mixed")  # which takes a GPU
    with pytest.raises(UserError, match=r"--trainer.precision 16-mixed: .* give bf16-mixed"):
        learner.configure_model()
