"""Losses and miners of pytorch-metric-learning in our learner."""

import warnings
from functools import partial

import pytest
import torch
from jsonargparse import ArgumentParser
from pytorch_metric_learning import losses, miners
from small_fit import small_data, small_trainer
from torch import nn

from levelfield.training.learner import MetricLearner

EMBEDDING_SIZE = 8
NO_LOSS = {  # of no use by themselves: base classes,
    "BaseMetricLossFunction", "BaseLossWrapper", "GenericPairLoss", "EmbeddingRegularizerMixin",
    "WeightRegularizerMixin",
    # what compares with ref_emb, a second view of the batch, which our batches do not have; what takes no labels,
    "SelfSupervisedLoss", "VICRegLoss", "ManifoldLoss",
    # and what keeps its histogram's graph from step to step, so that no loop's second backward works
    "DynamicSoftMarginLoss",
}  # fmt: skip
NO_MINER = {"BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets"}  # a base class; batches that are lists of triplets
ARGUMENTS = {  # of configurations
    "P2SGradLoss": {"descriptors_dim": EMBEDDING_SIZE},
    "RankedListLoss": {"margin": 0.4, "Tn": 1},
    "IntraPairVarianceLoss": {"pos_eps": 0.0, "neg_eps": 0.0},  # at its defaults it is 0 at first
}
WRAPPERS = {  # of other losses, which only Python can give
    "CrossBatchMemory": partial(losses.CrossBatchMemory, loss=losses.ContrastiveLoss()),
    "MultipleLosses": losses.MultipleLosses([losses.ContrastiveLoss(), losses.NTXentLoss()]),
}


class ConvTrunk(nn.Sequential):
    """Somebody's module, of a few numbers."""

    num_features = 12

    def __init__(self):
        super().__init__(nn.Conv2d(3, 12, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def configured(**parts) -> MetricLearner:
    """The learner as a configuration makes it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(MetricLearner, "model", fail_untyped=False)
    trunk = {"class_path": f"{__name__}.ConvTrunk"}
    config = {"model": {"trunk": trunk, "embedding_size": EMBEDDING_SIZE, **parts}}
    return parser.instantiate(parser.parse_object(config)).model


def train(learner: MetricLearner) -> set[str]:
    """Train three steps; the parts of the learner whose parameters moved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice, and the peer's
        learner.build_loss(15)  # 20 of the 40 letters are for training, a fourth validates
        before = {name: value.detach().clone() for name, value in learner.named_parameters()}
        small_trainer(max_steps=3, limit_val_batches=0).fit(learner, small_data(batch_size=16, steps_per_epoch=3))
    moved = {name: value for name, value in learner.named_parameters() if not torch.equal(value, before[name])}
    assert all(torch.isfinite(value).all() for value in moved.values())
    return {name.partition(".")[0] for name in moved}


def names(module) -> set[str]:
    return {name for name, value in vars(module).items() if isinstance(value, type)}


@pytest.mark.parametrize("name", sorted(names(losses) - NO_LOSS))
def test_every_loss_of_the_peer_trains(name: str) -> None:
    spec = {"class_path": f"pytorch_metric_learning.losses.{name}", "init_args": ARGUMENTS.get(name, {})}
    wrapped = name in WRAPPERS and MetricLearner(ConvTrunk(), WRAPPERS[name], embedding_size=EMBEDDING_SIZE)
    learner = wrapped or configured(loss=spec)
    moved = train(learner)
    sizes = {size for weight in learner.loss.parameters() for size in weight.shape}
    assert moved == {"trunk", "embedder", *(["loss"] if sizes else [])}
    assert isinstance(learner.loss, getattr(losses, name))
    if sizes:
        assert EMBEDDING_SIZE in sizes
        assert any(size % 15 == 0 for size in sizes)


@pytest.mark.parametrize("name", sorted(names(miners) - NO_MINER))
def test_every_miner_of_the_peer_trains(name: str) -> None:
    parts = {"loss": "levelfield.losses.ContrastiveLoss", "miner": f"pytorch_metric_learning.miners.{name}"}
    learner = configured(**{part: {"class_path": path} for part, path in parts.items()})
    assert train(learner) == {"trunk", "embedder"}
    assert isinstance(learner.miner, getattr(miners, name))
