"""What the learner supplies to a loss, whatever its class."""

import functools

import pytest
import torch
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning.distances import CosineSimilarity
from small_fit import small_data, small_learner, small_trainer
from torch import nn
from weighted_loss import WeightedLoss

from levelfield.errors import UserError
from levelfield.losses import (
    ArcFaceLoss,
    ClassificationLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    MarginLoss,
    WeightedSum,
)
from levelfield.training.callbacks.log_losses import _of_loss
from levelfield.training.checks import with_class_weights
from levelfield.training.learner import MetricLearner
from levelfield.training.make_loss import make_loss, of_loss, supplied_arguments
from levelfield.training.metadata import takes_metadata

pytestmark = pytest.mark.usefixtures("quiet")


class InAnotherOrder(WeightedLoss):
    def __init__(self, scale: float = 8.0, *, embedding_size: int = 2, num_classes: int = 10):
        super().__init__(num_classes, embedding_size, scale)


class ThroughKeywords(ClassificationLoss):
    def __init__(self, scale: float = 16.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def logits(self, cosines, labels):
        return cosines * self.scale


BOTH = ["num_classes", "embedding_size"]


@pytest.mark.parametrize(
    ("factory", "names"),
    [
        (ArcFaceLoss, BOTH),
        (WeightedLoss, BOTH),
        (InAnotherOrder, BOTH),
        (ThroughKeywords, BOTH),
        (functools.partial(WeightedLoss, scale=2.0), BOTH),
        (functools.partial(functools.partial(ThroughKeywords, scale=2.0), label_smoothing=0.1), BOTH),
        (peers.CosFaceLoss, BOTH),  # takes *args and **kwargs
        (lambda num_classes, embedding_size: ArcFaceLoss(num_classes, embedding_size), BOTH),
        (CrossBatchMemory, ["embedding_size"]),
        (ContrastiveLoss, []),
        (MarginLoss, []),  # num_classes=None: one boundary for all classes
        (peers.MarginLoss, []),
    ],
)
def test_what_a_class_names_is_supplied(factory, names):
    assert supplied_arguments(factory) == names


def test_a_class_that_needs_no_number_is_made_at_once():
    learner = small_learner(functools.partial(ContrastiveLoss, neg_margin=0.7))
    assert learner.loss.neg_margin == 0.7
    memory = small_learner(functools.partial(CrossBatchMemory, ContrastiveLoss()))
    assert memory.loss.memory.shape[1] == 16


def test_another_number_than_the_training_s_is_refused():
    assert make_loss(functools.partial(WeightedLoss, 15), 15, 16).weights.shape == (15, 16)
    for partial in (functools.partial(WeightedLoss, 7), functools.partial(WeightedLoss, num_classes=7)):
        with pytest.raises(UserError, match=r"num_classes 7\b.*\b15\b"):
            make_loss(partial, 15, 16)


def saved(learner, path):
    trainer = small_trainer(limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=1))
    trainer.save_checkpoint(path)
    return path


SUPPLIED = {
    "plain": (WeightedLoss, 8.0),
    "another order": (InAnotherOrder, 8.0),
    "keywords": (ThroughKeywords, 16.0),
    "partial": (functools.partial(WeightedLoss, scale=2.0), 2.0),
    "numbers by hand": (functools.partial(functools.partial(WeightedLoss, 15, 16), scale=2.0), 2.0),
}


@pytest.mark.parametrize("case", SUPPLIED)
def test_a_loss_gets_the_training_classes_and_the_embedding_size_and_comes_back(case, tmp_path):
    loss, scale = SUPPLIED[case]
    learner = small_learner(loss)
    loaded = MetricLearner.load_from_checkpoint(saved(learner, tmp_path / "it.ckpt"))
    weights = next(learner.loss.parameters())
    assert weights.shape == (15, 16)  # 20 of the 40 letters are for training, a fourth of them validates
    assert type(loaded.loss) is type(learner.loss)
    assert loaded.loss.scale == learner.loss.scale == scale
    assert torch.equal(next(loaded.loss.parameters()), weights)


class Told(ContrastiveLoss):
    """Has all settings that a loss class may have."""

    normalize, loss_lr, samples_per_class = False, 0.3, 2

    def __init__(self):
        super().__init__()
        self.terms = {}

    def compute(self, *given):
        self.terms = {"seen": given[0].sum().detach()}
        return super().compute(*given)


class Holding(nn.Module):
    """A fork's own wrapper."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, embeddings, labels, indices_tuple=None):
        return self.loss(embeddings, labels, indices_tuple)


HOLDERS = {
    "sum": lambda loss: WeightedSum({"a": loss}),
    "memory": lambda loss: CrossBatchMemory(loss, 16),
    "memory to be built": lambda loss: functools.partial(CrossBatchMemory, loss),
    "sum to be built": lambda loss: functools.partial(WeightedSum, {"a": functools.partial(CrossBatchMemory, loss)}),
    "memory in a sum": lambda loss: WeightedSum({"a": CrossBatchMemory(loss, 16), "b": loss}),
    "a fork's": Holding,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_loss_that_holds_another_passes_on_what_the_learner_says_and_asks(hold):
    x, y = torch.randn(6, 16, requires_grad=True), torch.tensor([0, 0, 3, 3, 4, 4])
    for option, value in {"model.normalize": False, "model.loss_lr": 0.3, "data.samples_per_class": 2}.items():
        assert of_loss(hold(Told()), option) == value
    learner = small_learner(hold(Told()))
    learner.build_loss(5)
    learner.loss(x, y)
    assert not learner.normalize
    assert "seen" in "".join(name for name, _ in _of_loss(learner.loss))
    learner = small_learner(hold(MarginLoss(learn_beta=True, beta_per_class=True)))
    learner.build_loss(5)
    learner.loss(x, y).backward()
    assert [weight.grad.shape for weight in learner.loss.parameters()] == [(5,)]


class Weighed(ContrastiveLoss):
    def forward(self, embeddings, labels, indices_tuple=None, metadata=None):
        return metadata["weight"].sum() * super().forward(embeddings, labels, indices_tuple)


def test_metadata_and_class_weights_reach_every_loss_that_can_have_them():
    nested = WeightedSum({"a": WeightedSum({"b": Weighed(), "c": ArcFaceLoss(5, 16)}), "d": ContrastiveLoss()})
    assert takes_metadata(nested)
    assert with_class_weights(nested) == [nested.losses["a"].losses["c"]]
    x, y = torch.randn(6, 16), torch.tensor([0, 0, 3, 3, 4, 4])
    once, twice = (nested(x, y, metadata={"weight": torch.tensor([weight])}) for weight in (1.0, 2.0))
    torch.testing.assert_close(twice - once, ContrastiveLoss()(x, y))
    for loss, key in ((Weighed(), "metadata"), (ArcFaceLoss(5, 16), "ArcFaceLoss"), (ContrastiveLoss, "no module")):
        with pytest.raises(ValueError, match=key):
            CrossBatchMemory(loss, 16)


class ObjectTrunk(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.num_features = 12
        self.layer = layer

    def forward(self, images):
        return self.layer(images).mean((2, 3))


def test_parts_that_were_objects_are_given_again(tmp_path):
    torch.manual_seed(0)
    trunk = ObjectTrunk(nn.Conv2d(3, 12, 5, stride=4))
    loss = functools.partial(peers.ArcFaceLoss, distance=CosineSimilarity())
    learner = MetricLearner(trunk, loss=loss, embedder=lambda features, size: nn.Linear(features, size, bias=False))
    path = saved(learner, tmp_path / "it.ckpt")
    parts = {"trunk": ObjectTrunk(nn.Conv2d(3, 12, 5, stride=4)), "loss": loss}
    with pytest.raises(UserError, match=r"it\.ckpt.*trunk=trunk"):
        MetricLearner.load_from_checkpoint(path)
    with pytest.raises(UserError, match="embedder=embedder"):
        MetricLearner.load_from_checkpoint(path, **parts)
    with pytest.raises(UserError, match="'trnk'"):
        MetricLearner.load_from_checkpoint(path, trnk=trunk)
    embedder = functools.partial(nn.Linear, bias=False)
    loaded = MetricLearner.load_from_checkpoint(path, embedder=embedder, **parts)
    images = torch.rand(4, 3, 32, 32)
    assert torch.equal(loaded(images), learner.eval()(images))
    assert torch.equal(loaded.loss.W, learner.loss.W)
    parts.pop("loss")
    with pytest.warns(UserWarning, match=r"it\.ckpt.* loss"):
        loaded = MetricLearner.load_from_checkpoint(path, embedder=embedder, **parts)
    assert torch.equal(loaded(images), learner(images))
