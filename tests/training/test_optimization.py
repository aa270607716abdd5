"""Every weight that can learn does, at its part's rate; layer-wise decay of the trunk's."""

import re
from functools import partial

import pytest
import timm
import torch
from small_fit import small_trainer, small_trunk
from timm.optim import param_groups_layer_decay
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss, NormalizedSoftmaxLoss
from levelfield.models import TransformersTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.regularizers import KoLeo
from levelfield.training.callbacks import RetrievalValidation
from levelfield.training.learner import MetricLearner

RATE, DECAY = 0.1, 0.5


def rates(trunk: nn.Module, **arguments) -> dict[str, float]:
    given = {"trunk_lr": RATE, "embedder_lr": 0.3, "layer_decay": DECAY, **arguments}
    learner = MetricLearner(trunk, loss=ContrastiveLoss(), embedding_size=8, **given)
    groups = learner.configure_optimizers().param_groups
    names = {weight: name for name, weight in learner.named_parameters()}
    found = {names[weight]: group["lr"] for group in groups for weight in group["params"]}
    assert found.keys() == set(names.values())
    assert all((rate == 0.3) == name.startswith("embedder.") for name, rate in found.items())
    assert list(found) == list(names.values())  # an optimizer's state goes by this order
    return {name: rate for name, rate in found.items() if name.startswith("trunk.")}


OF_TIMM = [
    ("test_vit", {"depth": 3}, 4),
    ("vit_small_patch14_reg4_dinov2", {"depth": 3, "embed_dim": 24, "num_heads": 2}, 4),
    ("convnextv2_tiny", {"depths": [1, 1, 2, 1], "dims": [8, 8, 8, 8]}, 6),
]


@pytest.mark.parametrize(("name", "arguments", "above"), OF_TIMM)
def test_each_weight_of_a_trunk_of_timm_has_its_layer_s_rate(name, arguments, above):
    """lr * decay^(L - l), as timm's fine-tuning has it with a head on top."""
    found = rates(small_trunk(name, arguments=arguments))
    assert min(found.values()) == RATE * DECAY**above
    whole = timm.create_model(name, num_classes=3, **arguments)
    names = {weight: each for each, weight in whole.named_parameters()}
    for group in param_groups_layer_decay(whole, layer_decay=DECAY):
        for each in (names[weight] for weight in group["params"]):
            if not each.startswith(("head.weight", "head.bias", "head.fc")):
                assert found[f"trunk.model.{each}"] == RATE * group["lr_scale"]


def test_each_weight_of_an_encoder_of_transformers_has_its_layer_s_rate():
    config = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1}
    trunk = TransformersTrunk("none", weights=None, config=config | {"intermediate_size": 8})
    for name, rate in rates(trunk).items():
        block = re.search(r"encoder\.layer\.(\d)", name)
        assert rate == RATE * DECAY ** (3 - (int(block[1]) + 1 if block else 0)), name


def test_a_trunk_that_does_not_say_its_layers_is_refused():
    with pytest.raises(UserError, match=r"--model\.layer_decay"):
        rates(ModuleTrunk(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 4))
    with pytest.raises(UserError, match="layer_decay"):
        rates(small_trunk("test_vit"), layer_decay=-1.0)


class NoisyLearner(MetricLearner):
    def __init__(self, noise=0.1, **kwargs):
        super().__init__(**kwargs)


INSTEAD = {
    **{"lr": "trunk_lr, embedder_lr or loss_lr", "batch_size": "--data.batch_size"},
    **{"embeding_size": "'embedding_size'", "nois": "'noise'"},
}


@pytest.mark.parametrize(("name", "instead"), INSTEAD.items())
def test_an_argument_that_no_learner_takes_is_named_with_the_one_to_give(name, instead):
    with pytest.raises(UserError, match=f"'{name}'.*{instead}"):
        NoisyLearner(trunk=small_trunk("test_vit"), loss=ContrastiveLoss(), **{name: 1})


def own_learner(**arguments) -> MetricLearner:
    """Every part has weights that learn, two are of no part, and a teacher does not learn."""
    loss, regularizer = NormalizedSoftmaxLoss(3, 4), KoLeo(0.1)
    loss.projection, regularizer.direction = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
    given = {"embedding_size": 4, "loss": loss, "regularizer": regularizer, "miner": nn.Linear(4, 1), **arguments}
    learner = MetricLearner(ModuleTrunk(nn.Linear(5, 8), 8), embedder=two_layers, **given)
    learner.projection, learner.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    learner.teacher = nn.Linear(4, 4).requires_grad_(False)
    return learner


def two_layers(features: int, size: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, size))


def test_what_is_of_no_part_learns_at_the_embedders_rates_in_the_last_group():
    learner = own_learner(trunk_lr=0.1, embedder_lr=0.2, loss_lr=0.3, weight_decay=0.4)
    groups = learner.configure_optimizers().param_groups
    found = [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
    assert found == [("trunk", 0.1, 0.4), ("embedder", 0.2, 0.4), ("loss", 0.3, 0.0), ("rest", 0.2, 0.4)]
    names = {weight: name for name, weight in learner.named_parameters()}
    parts = [{names[weight].partition(".")[0] for weight in group["params"]} for group in groups]
    assert parts == [{"trunk"}, {"embedder"}, {"loss"}, {"miner", "regularizer", "projection", "scale"}]
    assert sum(len(group["params"]) for group in groups) == len(names) - 2  # but for the teacher's


def test_a_weight_that_two_parts_share_is_in_one_group():
    learner = own_learner()
    learner.loss.projection = learner.projection
    learner.projection.bias = learner.embedder[2].bias
    groups = learner.configure_optimizers().param_groups
    assert groups[1]["params"][-1] is learner.projection.bias
    assert groups[2]["params"][-1] is learner.projection.weight
    assert [len(group["params"]) for group in groups] == [2, 4, 2, 4]


@pytest.mark.usefixtures("quiet")
def test_a_plateau_watches_the_score_that_selects() -> None:
    """It is the only score of this validation."""
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, mode="max", patience=0, threshold=10.0)
    samples = DataLoader(TensorDataset(torch.rand(12, 8), torch.arange(12) % 3), batch_size=12)
    trunk = ModuleTrunk(nn.Identity(), 8)
    learner = MetricLearner(trunk, loss=ContrastiveLoss(), embedding_size=4, lr_scheduler=plateau, embedder_lr=0.5)
    trainer = small_trainer(RetrievalValidation(metrics=("map",), selected_by="map"), max_epochs=3)
    trainer.fit(learner, samples, samples)
    assert [config.monitor for config in trainer.lr_scheduler_configs] == ["val/map"]
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 * 0.1**2)
