"""How the trunk trains: equal gradients with less kept, batch norm over processes."""

import pytest
import torch
from lightning.pytorch import Trainer
from small_fit import small_learner, small_trunk
from tiny_text import tiny_text_model
from torch import nn

from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk, TransformersTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.callbacks import TimmSyncBatchNorm
from levelfield.training.callbacks.trunk_compute import recompute_activations
from levelfield.training.learner import MetricLearner

TEXTS = ["Where is my new card?", "it has not come.", "Why was I charged twice?"]
DEEP = {
    "vit": ("test_vit", {"depth": 6, "drop_path_rate": 0.3}),
    "convnext": ("convnextv2_tiny", {"depths": [1, 1, 6, 1], "dims": [8, 8, 8, 8]}),
    "resnet": ("test_resnet", {}),
}
DISTILBERT = {"model_type": "distilbert", "dim": 16, "hidden_dim": 64, "n_layers": 6, "n_heads": 2, "pad_token_id": 0}


def stepped(kind: str, folder, checkpointing: bool) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Embeddings and gradients in float64, with dropout, and the bytes that the forward keeps for the backward."""
    torch.manual_seed(0)
    if kind == "text":
        trunk = TransformersTrunk(str(tiny_text_model(folder, DISTILBERT)), weights=None, max_length=64)
    else:
        trunk = TimmTrunk(DEEP[kind][0], weights=None, arguments=DEEP[kind][1])
    learner = MetricLearner(trunk, loss=ContrastiveLoss(), embedding_size=8).double()
    if checkpointing:
        recompute_activations(learner.trunk)
    torch.manual_seed(1)
    side = 160 if kind == "vit" else 64
    samples = TEXTS if kind == "text" else torch.rand(4, 3, side, side).double()
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    torch.manual_seed(2)
    weights = {weight.data_ptr() for weight in learner.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        embeddings = learner(samples)
    embeddings.square().mul(torch.arange(8)).sum().backward()
    gradients = [weight.grad for weight in learner.parameters() if weight.grad is not None]
    return embeddings, gradients, sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize("kind", [*DEEP, "text"])
def test_the_same_gradients_with_less_kept(kind, tmp_path):
    embeddings, gradients, kept = stepped(kind, tmp_path, False)
    again, same, fewer = stepped(kind, tmp_path, True)
    torch.testing.assert_close(again, embeddings, rtol=0, atol=1e-12)
    assert len(same) == len(gradients) > 0
    for found, expected in zip(same, gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)
    assert fewer < (0.8 if kind == "resnet" else 0.5) * kept  # the ResNet has a block a stage, so its inputs are much


def test_where_it_cannot_be_is_said():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    with pytest.raises(UserError, match=r"GradientCheckpointing: ModuleTrunk cannot do it"):
        recompute_activations(ModuleTrunk(linear, num_features=4))
    trunk = TimmTrunk("test_resnet", weights=None)
    with pytest.raises(UserError, match=r"batch norm twice.*--model.freeze_batch_norm true"):
        recompute_activations(trunk, freeze_batch_norm=False)


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
