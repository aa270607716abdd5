"""A learner made in Python: what its loss gets, what its checkpoint brings back, and a fit of other classes."""

import warnings
from functools import partial

import numpy as np
import pytest
import pytorch_metric_learning.miners
import torch
from lightning.pytorch import LightningDataModule
from PIL import Image
from plain_lightning import spec
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning.distances import CosineSimilarity
from small_fit import small_data, small_learner, small_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from weighted_loss import WeightedLoss

from levelfield import losses, miners
from levelfield.core.errors import UserError
from levelfield.data.samplers import MPerClassBatchSampler
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, CrossBatchMemory, WeightedSum
from levelfield.training.learner import MetricLearner
from levelfield.training.loss_factory import loss_attribute, supplied_arguments
from levelfield.use.encoder import embed

pytestmark = pytest.mark.usefixtures("quiet")
KINDS = [getattr(package, name) for package in (losses, miners) for name in package.__all__]
NEEDED = {
    "CrossBatchMemory": {"loss": ContrastiveLoss(), "embedding_size": 4},
    "WeightedSum": {"losses": {"a": ContrastiveLoss()}},
    "RankedListLoss": {"margin": 0.4, "Tn": 10.0},
}


def step(learner, **data):
    trainer = small_trainer(limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(**{"batch_size": 8, "steps_per_epoch": 1, **data}))
    return trainer


@pytest.fixture
def stored(tmp_path):
    """A function that fits a learner for one step and returns its checkpoint."""
    return lambda learner: step(learner).save_checkpoint(tmp_path / "it.ckpt") or tmp_path / "it.ckpt"


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_and_miner_is_built_again_from_its_arguments(kind):
    sizes = {"num_classes": 3, "embedding_size": 4} if "num_classes" in supplied_arguments(kind) else {}
    given = NEEDED.get(kind.__name__, sizes)
    made = kind(**given)
    assert given.items() <= made.init_args.items()
    again = kind(**made.init_args)
    assert again.init_args == made.init_args
    assert [*again.state_dict()] == [*made.state_dict()]


@pytest.mark.filterwarnings("ignore:.*was trained on 5 classes of the validation fold")
@pytest.mark.parametrize(
    ("loss", "loaded"), [(ArcFaceLoss, True), (partial(losses.MarginLoss, learn_beta=True), False)]
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
    with pytest.warns(UserWarning, match="trained on 5 classes of the validation fold"):
        small_trainer().validate(learner, datamodule=small_data(), verbose=False)


@pytest.mark.filterwarnings("ignore:.*was trained on 5 classes of the validation fold")
def test_what_cannot_go_on_with_other_classes_is_refused(stored):
    for learner in (small_learner(ArcFaceLoss(15, 16)), small_learner(peers.ArcFaceLoss(15, 16))):
        path = stored(learner)
        with pytest.raises(UserError, match="ArcFaceLoss"):
            step(learner, fold=1)
    with pytest.raises(UserError, match=r"num_classes 7\b.*\b15\b"):
        small_learner(partial(WeightedLoss, 7)).build_loss(15)
    with pytest.raises(UserError, match="test classes"):
        step(learner, split="random", split_seed=1)
    with pytest.raises(UserError, match="load_from_checkpoint"):
        small_trainer(max_epochs=2).fit(small_learner(ArcFaceLoss), small_data(fold=1), ckpt_path=path)


def test_seed_everything_reaches_a_sampler_in_your_own_loader(monkeypatch):
    def drawn(**seed: int) -> list[list[int]]:
        return [[*map(int, batch)] for batch in MPerClassBatchSampler([0, 1, 2] * 8, 4, 2, 3, **seed)]

    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    assert drawn() == drawn(seed=1) != drawn(seed=2)


def test_one_loss_has_two_paths_and_keeps_its_class_weights_at_both_doors(fitted):
    path = fitted / "best.ckpt"
    weights = torch.load(path, weights_only=True)["state_dict"]["loss.class_weights"]
    for loss in (ArcFaceLoss, partial(ArcFaceLoss, margin=10.0)):
        assert torch.equal(MetricLearner.load_from_checkpoint(path, loss=loss).loss.class_weights, weights)
    assert MetricLearner.load_from_checkpoint(path, loss=losses.CosFaceLoss).loss is None, "it is built in a fit"


class ThroughKeywords(losses.ClassificationLoss):
    def __init__(self, scale: float = 16.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def logits(self, cosines, labels):
        return cosines * self.scale


def heated_loss(*, embedding_size: int = 2, num_classes: int = 10) -> WeightedLoss:
    return WeightedLoss(num_classes, embedding_size, scale=16.0)


class Worded(WeightedLoss):
    """Its arguments have no types."""

    def __init__(self, num_classes, embedding_size, mode, words=(), named=None):
        super().__init__(num_classes, embedding_size)
        self.given = mode, [*words], named


TEXTS = ("no", ["no", "1", "null", "[1]", "a: b", "1e3"], {"x": "off"})
PULL = ContrastiveLoss(neg_margin=0.7)
SUM = partial(WeightedSum, losses={"a": PULL, "b": ArcFaceLoss})
# A loss in each form, and the argument of one of its parts that comes back.
FORMS = {
    "a class": (WeightedLoss, lambda loss: loss.scale == 8.0),
    "a class behind keywords": (ThroughKeywords, lambda loss: loss.scale == 16.0),
    "a partial": (partial(partial(ThroughKeywords, scale=2.0), class_fraction=0.9), lambda loss: loss.scale == 2.0),
    "numbers by hand": (partial(partial(WeightedLoss, 15, 16), scale=2.0), lambda loss: loss.scale == 2.0),
    "a function, numbers with defaults": (heated_loss, lambda loss: loss.scale == 16.0),
    "the peer's": (peers.CosFaceLoss, lambda loss: loss.scale == 64.0),
    "texts in which a parser reads more": (partial(Worded, 15, 16, *TEXTS), lambda loss: loss.given == TEXTS),
    "a module": (ArcFaceLoss(15, 16, margin=0.7), lambda loss: loss.margin == 0.7),
    "a memory": (CrossBatchMemory(PULL, 16, 64), lambda loss: loss.loss.neg_margin == 0.7),
    "a sum": (WeightedSum({"a": PULL}, {"a": 0.5}), lambda loss: loss.losses["a"].neg_margin == 0.7),
    "a sum to be built": (SUM, lambda loss: loss.losses["a"].neg_margin == 0.7),
}


@pytest.mark.parametrize(("loss", "holds"), FORMS.values(), ids=FORMS)
def test_a_loss_gets_the_training_classes_and_the_embedding_size_and_comes_back(loss, holds, stored):
    learner = small_learner(loss)
    loaded = MetricLearner.load_from_checkpoint(stored(learner))
    assert type(loaded.loss) is type(learner.loss)
    assert holds(learner.loss)
    assert holds(loaded.loss)
    for name, weights in learner.loss.named_parameters():
        assert sorted(weights.shape) == [15, 16]  # 20 of the 40 letters are for training, a fourth of them validates
        assert torch.equal(loaded.loss.get_parameter(name), weights)


# Has all settings that a loss class may have.
Told = type("Told", (ContrastiveLoss,), {"normalize": False, "loss_lr": 0.3, "samples_per_class": 2})


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
    for option, value in {"model.normalize": False, "model.loss_lr": 0.3, "data.samples_per_class": 2}.items():
        assert loss_attribute(hold(Told()), option) == value
    learner = small_learner(hold(losses.MarginLoss(learn_beta=True, beta_per_class=True)))
    learner.build_loss(5)
    learner.loss(torch.randn(6, 16), torch.tensor([0, 0, 3, 3, 4, 4])).backward()
    assert [weight.grad.shape for weight in learner.loss.parameters()] == [(5,)]


class ObjectTrunk(nn.Sequential):
    num_features = 12

    def __init__(self, layer):
        super().__init__(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_parts_that_were_objects_are_given_again(stored):
    def sgd(groups) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.1)

    trunk, miner = ObjectTrunk(nn.Conv2d(3, 12, 5, stride=4)), pytorch_metric_learning.miners.MultiSimilarityMiner()
    loss, rate = partial(peers.ArcFaceLoss, distance=CosineSimilarity()), np.logspace(-4, -2, 3)[0]
    of_fit = {"loss": loss, "miner": miner, "optimizer": sgd, "trunk_lr": rate}
    learner = MetricLearner(trunk, embedder=lambda given, size: nn.Linear(given, size, bias=False), **of_fit)
    path, images = stored(learner), torch.rand(4, 3, 32, 32)
    parts = {"trunk": ObjectTrunk(nn.Conv2d(3, 12, 5, stride=4)), "embedder": partial(nn.Linear, bias=False)}
    for given, key in (({"embedder": parts["embedder"]}, r"it\.ckpt.*trunk=trunk"), ({"trunk": trunk}, "embedder=")):
        with pytest.raises(UserError, match=key):
            MetricLearner.load_from_checkpoint(path, **given)
    with pytest.raises(UserError, match="'trnk'"):
        MetricLearner.load_from_checkpoint(path, trnk=trunk)
    loaded = MetricLearner.load_from_checkpoint(path, loss=loss, **parts)  # nobody needs the others to embed
    assert torch.equal(loaded(images), learner.eval()(images))
    assert torch.equal(loaded.loss.W, learner.loss.W)
    assert (loaded.optimization.trunk_lr, type(loaded.hparams["trunk_lr"])) == (1e-4, float), "it was of numpy"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step(loaded)
    lines = "\n".join(str(each.message) for each in told)
    named = [f"its {name}" in lines for name in ("miner", "optimizer", "loss", "regularizer")]
    assert named == [True, True, False, False]
    whole = MetricLearner.load_from_checkpoint(path, loss=loss, miner=miner, optimizer=torch.optim.SGD, **parts)
    assert whole.miner is miner
    step(whole)  # no warning
    for reason in ("was an object", "NoSuchLoss is not installed"):
        with pytest.warns(UserWarning, match=rf"it\.ckpt.* loss.*{reason}"):
            loaded = MetricLearner.load_from_checkpoint(path, **parts)
        assert torch.equal(loaded(images), learner(images))
        checkpoint = torch.load(path, weights_only=True)
        checkpoint["hyper_parameters"]["loss"] = spec("pytorch_metric_learning.losses.NoSuchLoss")
        torch.save(checkpoint, path)


class Saving(MetricLearner):
    """Lightning's habit stores each argument, objects among them."""

    def __init__(self, *, noise: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.noise = noise
        self.save_hyperparameters()

    def forward(self, samples):
        return -super().forward(samples)


@pytest.mark.filterwarnings("ignore:Attribute .* is an instance")
def test_a_subclass_comes_back_as_itself_without_objects(stored):
    path = stored(learner := small_learner(ArcFaceLoss, Saving, noise=0.3))
    images = torch.rand(3, 3, 32, 32)
    for kind in (MetricLearner, Saving):
        loaded = kind.load_from_checkpoint(path)
        assert (type(loaded), loaded.noise, loaded.trunk.init_args["name"]) == (Saving, 0.3, "test_resnet")
        torch.testing.assert_close(loaded(images), learner.eval()(images))


class Foreign(LightningDataModule):
    """Names of `MetricDataModule` with another meaning."""

    features, identity, train_samples, dataset, fold, cache = ("width", "height"), "mine", 16, "letters", 3, ()

    def __init__(self, transforms: str = "flip") -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        samples = TensorDataset(torch.rand(16, 3, 32, 32), torch.arange(16) // 4, torch.arange(16))
        return DataLoader(samples, batch_size=16)

    val_dataloader = test_dataloader = train_dataloader


def test_a_foreign_datamodule_is_not_taken_for_ours(tmp_path):
    trainer = small_trainer(default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(small_learner(), datamodule=Foreign())
    trainer.test(small_learner(), datamodule=Foreign(), verbose=False)
    path = trainer.checkpoint_callback.best_model_path
    assert torch.load(path, weights_only=True)["levelfield"]["data"] is None
    with pytest.raises(UserError, match="transforms=ImageTransforms"):
        embed(path, [Image.new("RGB", (32, 32))])
