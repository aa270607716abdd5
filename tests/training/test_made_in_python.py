"""A learner made in Python: what its loss gets, its checkpoint with all settings, a fit that goes on, other classes."""

import inspect
import warnings
from functools import partial

import numpy as np
import pytest
import pytorch_metric_learning.miners
import torch
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning.distances import CosineSimilarity
from small_fit import small_data, small_learner, small_trainer
from torch import nn
from weighted_loss import WeightedLoss

from levelfield import losses, miners
from levelfield.core.errors import UserError
from levelfield.data.samplers import MPerClassBatchSampler
from levelfield.losses import (
    ArcFaceLoss,
    ClassificationLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    MarginLoss,
    WeightedSum,
)
from levelfield.training import start
from levelfield.training.learner import MetricLearner
from levelfield.training.loss_factory import loss_attribute, make_loss, supplied_arguments
from levelfield.training.start import with_class_weights
from levelfield.training.steps import _of_loss

pytestmark = pytest.mark.usefixtures("quiet")


def step(learner, **data):
    trainer = small_trainer(limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(**{"batch_size": 8, "steps_per_epoch": 1, **data}))
    return trainer


@pytest.fixture
def stored(tmp_path):
    """A function that fits a learner for one step and returns its checkpoint."""
    return lambda learner: step(learner).save_checkpoint(tmp_path / "it.ckpt") or tmp_path / "it.ckpt"


PULL = ContrastiveLoss(neg_margin=0.7)
PARTS = [
    (CrossBatchMemory(PULL, 16, 64), lambda loss: loss.loss.neg_margin),
    (WeightedSum({"a": PULL}, {"a": 0.5}), lambda loss: loss.losses["a"].neg_margin),
    (partial(WeightedSum, losses={"a": PULL, "b": ArcFaceLoss}), lambda loss: loss.losses["a"].neg_margin),
    (ArcFaceLoss(15, 16, margin=0.7), lambda loss: loss.margin),
]


@pytest.mark.parametrize(("loss", "value"), PARTS)
def test_a_loss_with_parts_comes_back_with_its_arguments(loss, value, stored):
    loaded = MetricLearner.load_from_checkpoint(stored(small_learner(loss)))
    assert value(loaded.loss) == 0.7
    assert type(loaded.loss) is (loss.func if isinstance(loss, partial) else type(loss))


@pytest.mark.parametrize("name", [*losses.__all__, *miners.__all__])
def test_every_loss_and_miner_is_built_again_from_its_arguments(name):
    kind = getattr(losses if name in losses.__all__ else miners, name)
    given = {
        "CrossBatchMemory": {"loss": ContrastiveLoss(), "embedding_size": 4},
        "WeightedSum": {"losses": {"a": ContrastiveLoss()}},
        "RankedListLoss": {"margin": 0.4, "Tn": 10.0},
    }.get(name, {})
    if "num_classes" in supplied_arguments(kind):
        given = {"num_classes": 3, "embedding_size": 4}
    made = kind(**given)
    assert given.items() <= made.init_args.items()
    taken = inspect.signature(kind.__init__).parameters
    assert {each for each in taken if taken[each].default is not inspect.Parameter.empty} <= made.init_args.keys()
    again = kind(**made.init_args)
    assert again.init_args == made.init_args
    assert [*again.state_dict()] == [*made.state_dict()]


def test_parts_without_a_path_are_named_when_the_fit_goes_on(stored):
    def sgd(groups) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.1)

    miner = pytorch_metric_learning.miners.MultiSimilarityMiner()
    path = stored(small_learner(miner=miner, optimizer=sgd, trunk_lr=np.logspace(-4, -2, 3)[0]))
    loaded = MetricLearner.load_from_checkpoint(path)  # nobody needs them to embed
    assert (loaded.optimization.trunk_lr, type(loaded.hparams["trunk_lr"])) == (1e-4, float), "it was of numpy"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step(loaded)
    lines = "\n".join(str(each.message) for each in told)
    named = [f"its {name}" in lines for name in ("miner", "optimizer", "loss", "regularizer")]
    assert named == [True, True, False, False]
    whole = MetricLearner.load_from_checkpoint(path, miner=miner, optimizer=torch.optim.SGD)
    assert whole.miner is miner
    step(whole)  # no warning


class Starting(MetricLearner):
    """Somebody's learner, with a hook of its own."""

    def on_fit_start(self):
        self.began = True


def test_a_resumed_fit_embeds_nothing_to_start_and_a_used_trainer_starts_a_new_learner(stored, monkeypatch):
    started = []
    real = start.start_embedder
    monkeypatch.setattr(start, "start_embedder", lambda *given: (started.append(given[1]), real(*given)))
    new = partial(small_learner, kind=Starting, embedder_init="pca", trunk_lr=0.0, embedder_lr=0.0)
    first = new()
    path = stored(first)
    assert (first.began, started) == (True, ["pca"])
    small_trainer(max_epochs=2).fit(new(), datamodule=small_data(), ckpt_path=path)
    assert started == ["pca"]
    trainer = small_trainer(limit_train_batches=1)
    trainer.validate(first, datamodule=small_data(), ckpt_path=path, verbose=False)
    second = new()
    trainer.fit(second, datamodule=small_data())
    assert started == ["pca", "pca"]
    torch.testing.assert_close(second.embedder.linear.weight, first.embedder.linear.weight)


@pytest.mark.filterwarnings("ignore:.*was trained on 5 classes of the validation fold")
@pytest.mark.parametrize(
    ("loss", "loaded"),
    [(ArcFaceLoss, True), (partial(MarginLoss, learn_beta=True), False), (ArcFaceLoss, False)],
)
def test_on_other_classes_the_loss_starts_from_scratch(loss, loaded, stored):
    learner = small_learner(loss, loss_lr=0.5)
    path = stored(learner)
    before = {name: value.clone() for name, value in learner.loss.state_dict().items()}
    learner = MetricLearner.load_from_checkpoint(path) if loaded else learner
    learner.optimization.loss_lr = 0.0
    with pytest.warns(UserWarning, match="its loss starts from scratch"):
        step(learner, fold=1)
    for name, value in learner.loss.state_dict().items():
        assert not torch.equal(value, before[name]), name
    step(learner, fold=1)  # the same classes: no warning


@pytest.mark.filterwarnings("ignore:.*was trained on 5 classes of the validation fold")
def test_what_cannot_go_on_with_other_classes_is_refused(stored):
    for learner in (small_learner(ArcFaceLoss(15, 16)), small_learner(peers.ArcFaceLoss(15, 16))):
        path = stored(learner)
        with pytest.raises(UserError, match="ArcFaceLoss"):
            step(learner, fold=1)
    with pytest.raises(UserError, match="test classes"):
        step(learner, split="random", split_seed=1)
    with pytest.raises(UserError, match="load_from_checkpoint"):
        small_trainer(max_epochs=2).fit(small_learner(ArcFaceLoss), small_data(fold=1), ckpt_path=path)


def test_validation_on_classes_that_were_trained_on_is_warned_of(stored):
    learner = MetricLearner.load_from_checkpoint(stored(small_learner()))
    small_trainer().validate(learner, datamodule=small_data(), verbose=False)  # its own fold: no warning
    with pytest.warns(UserWarning, match="trained on 5 classes of the validation fold"):
        small_trainer().validate(learner, datamodule=small_data(fold=1), verbose=False)


def test_seed_everything_reaches_a_sampler_in_your_own_loader(monkeypatch):
    drawn = {}
    for seed in ("1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        drawn[seed] = [[*map(int, batch)] for batch in MPerClassBatchSampler([0, 1, 2] * 8, 4, 2, 3)]
    assert drawn["1"] != drawn["2"]
    given = MPerClassBatchSampler([0, 1, 2] * 8, 4, 2, 3, seed=1)
    assert [[*map(int, batch)] for batch in given] == drawn["1"]


def test_one_loss_has_two_paths_and_keeps_its_class_weights_at_both_doors(fitted):
    path = fitted / "best.ckpt"
    weights = torch.load(path, weights_only=True)["state_dict"]["loss.class_weights"]
    for loss in (ArcFaceLoss, partial(ArcFaceLoss, margin=10.0)):
        assert torch.equal(MetricLearner.load_from_checkpoint(path, loss=loss).loss.class_weights, weights)
    assert MetricLearner.load_from_checkpoint(path, loss=losses.CosFaceLoss).loss is None, "it is built in a fit"


class InAnotherOrder(WeightedLoss):
    def __init__(self, scale: float = 8.0, *, embedding_size: int = 2, num_classes: int = 10):
        super().__init__(num_classes, embedding_size, scale)


class ThroughKeywords(ClassificationLoss):
    def __init__(self, scale: float = 16.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def logits(self, cosines, labels):
        return cosines * self.scale


def test_another_number_than_the_training_s_is_refused():
    assert make_loss(partial(WeightedLoss, 15), 15, 16).weights.shape == (15, 16)
    for given in (partial(WeightedLoss, 7), partial(WeightedLoss, num_classes=7)):
        with pytest.raises(UserError, match=r"num_classes 7\b.*\b15\b"):
            make_loss(given, 15, 16)


def heated_loss(num_classes, embedding_size) -> WeightedLoss:
    return WeightedLoss(num_classes, embedding_size, scale=16.0)


SUPPLIED = {
    "plain": (WeightedLoss, 8.0),
    "another order": (InAnotherOrder, 8.0),
    "keywords": (ThroughKeywords, 16.0),
    "partial": (partial(partial(ThroughKeywords, scale=2.0), class_fraction=0.9), 2.0),
    "numbers by hand": (partial(partial(WeightedLoss, 15, 16), scale=2.0), 2.0),
    "a function": (heated_loss, 16.0),
    "any arguments": (peers.CosFaceLoss, 64.0),
}


@pytest.mark.parametrize("case", SUPPLIED)
def test_a_loss_gets_the_training_classes_and_the_embedding_size_and_comes_back(case, stored):
    loss, scale = SUPPLIED[case]
    learner = small_learner(loss)
    loaded = MetricLearner.load_from_checkpoint(stored(learner))
    weights = next(learner.loss.parameters())
    assert sorted(weights.shape) == [15, 16]  # 20 of the 40 letters are for training, a fourth of them validates
    assert type(loaded.loss) is type(learner.loss)
    assert loaded.loss.scale == learner.loss.scale == scale
    assert torch.equal(next(loaded.loss.parameters()), weights)


class Told(ContrastiveLoss):
    """Has all settings that a loss class may have."""

    normalize, loss_lr, samples_per_class = False, 0.3, 2

    def compute(self, *given):
        self.terms = {"seen": given[0].sum().detach()}
        return super().compute(*given)


class Holding(nn.Module):
    """A fork's own wrapper."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, *given):
        return self.loss(*given)


HOLDERS = {
    "sum": lambda loss: WeightedSum({"a": loss}),
    "memory": lambda loss: CrossBatchMemory(loss, 16),
    "memory to be built": lambda loss: partial(CrossBatchMemory, loss),
    "sum to be built": lambda loss: partial(WeightedSum, {"a": partial(CrossBatchMemory, loss)}),
    "a fork's": Holding,
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_loss_that_holds_another_passes_on_what_the_learner_says_and_asks(hold):
    x, y = torch.randn(6, 16, requires_grad=True), torch.tensor([0, 0, 3, 3, 4, 4])
    for option, value in {"model.normalize": False, "model.loss_lr": 0.3, "data.samples_per_class": 2}.items():
        assert loss_attribute(hold(Told()), option) == value
    learner = small_learner(hold(Told()))
    learner.build_loss(5)
    learner.loss(x, y)
    assert not learner.normalize
    assert "seen" in "".join(name for name, _ in _of_loss(learner.loss))
    learner = small_learner(hold(MarginLoss(learn_beta=True, beta_per_class=True)))
    learner.build_loss(5)
    learner.loss(x, y).backward()
    assert [weight.grad.shape for weight in learner.loss.parameters()] == [(5,)]


def test_class_weights_inside_sums_are_found():
    nested = WeightedSum({"a": WeightedSum({"c": ArcFaceLoss(5, 16)}), "d": ContrastiveLoss()})
    assert with_class_weights(nested) == [nested.losses["a"].losses["c"]]


class ObjectTrunk(nn.Sequential):
    num_features = 12

    def __init__(self, layer):
        super().__init__(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_parts_that_were_objects_are_given_again(stored):
    trunk = ObjectTrunk(nn.Conv2d(3, 12, 5, stride=4))
    loss = partial(peers.ArcFaceLoss, distance=CosineSimilarity())
    learner = MetricLearner(trunk, loss=loss, embedder=lambda features, size: nn.Linear(features, size, bias=False))
    path = stored(learner)
    parts = {"trunk": ObjectTrunk(nn.Conv2d(3, 12, 5, stride=4)), "embedder": partial(nn.Linear, bias=False)}
    for given, key in (({"embedder": parts["embedder"]}, r"it\.ckpt.*trunk=trunk"), ({"trunk": trunk}, "embedder=")):
        with pytest.raises(UserError, match=key):
            MetricLearner.load_from_checkpoint(path, **given)
    with pytest.raises(UserError, match="'trnk'"):
        MetricLearner.load_from_checkpoint(path, trnk=trunk)
    images = torch.rand(4, 3, 32, 32)
    loaded = MetricLearner.load_from_checkpoint(path, loss=loss, **parts)
    assert torch.equal(loaded(images), learner.eval()(images))
    assert torch.equal(loaded.loss.W, learner.loss.W)
    with pytest.warns(UserWarning, match=r"it\.ckpt.* loss"):
        loaded = MetricLearner.load_from_checkpoint(path, **parts)
    assert torch.equal(loaded(images), learner(images))
