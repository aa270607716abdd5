"""`Trainer(sync_batchnorm=True)` keeps what the network computes."""

import pytest
import torch
from lightning.pytorch import Trainer
from small_fit import small_learner, small_trunk
from torch import nn

from levelfield.core.errors import UserError
from levelfield.training.callbacks import TimmSyncBatchNorm
from levelfield.training.learner import MetricLearner


def learner_of(trunk: str, **trainer) -> MetricLearner:
    learner = small_learner(trunk=small_trunk(trunk)).eval()
    learner.trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, **trainer)
    return learner


def convert(learner: MetricLearner) -> None:
    TimmSyncBatchNorm().setup(learner.trainer, learner, "fit")


@pytest.mark.parametrize("trunk", ["test_efficientnet", "test_resnet"])  # the first has activations in its batch norm
def test_the_converted_network_computes_the_same(trunk: str) -> None:
    learner, images = learner_of(trunk, sync_batchnorm=True), torch.rand(2, 3, 32, 32)
    before, names = learner(images), list(learner.state_dict())
    convert(learner)
    norms = [module for module in learner.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(isinstance(module, nn.SyncBatchNorm) for module in norms)
    torch.testing.assert_close(learner.eval()(images), before)
    assert list(learner.state_dict()) == names
    assert learner.trainer.strategy._layer_sync is None  # or Lightning would convert again, its own way


def test_batch_norm_that_learns_on_a_cpu_is_refused_and_nothing_is_converted_unasked() -> None:
    learner = learner_of("test_resnet")
    convert(learner)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in learner.modules())
    learner = learner_of("test_resnet", sync_batchnorm=True)
    learner.freeze_batch_norm = False
    with pytest.raises(UserError, match=r"--trainer\.sync_batchnorm true"):
        convert(learner.train())
