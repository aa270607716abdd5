"""A batch in chunks has the gradients of the batch: of autograd through all chunks at once, with the same draws."""

import functools
import random
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from small_fit import small_learner, small_trainer, small_trunk
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss, CrossBatchMemory, MultiSimilarityLoss, NTXentLoss, TripletMarginLoss
from levelfield.miners import BatchHardMiner
from levelfield.models import MLPEmbedder
from levelfield.training.batches import Batch
from levelfield.training.callbacks import GradientCaching
from levelfield.training.learner import MetricLearner
from levelfield.training.steps import seed_draws

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]

LABELS = torch.arange(10) // 2


def resnet(**arguments) -> nn.Module:
    """A trunk whose residual branches have gradients from the first step on."""
    torch.manual_seed(1)
    return small_trunk(arguments={"zero_init_last": False, **arguments})


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Ten pictures of noise, the same each time."""
    return torch.rand(10, 3, 32, 32, dtype=dtype, generator=torch.Generator().manual_seed(2)), LABELS


class NoisyLearner(MetricLearner):
    """A learner of one's own, with a step between trunk and embedder and one before the loss."""

    def embed_features(self, features):
        return super().embed_features(features.tanh())

    def compute_loss(self, embeddings, labels):
        return super().compute_loss(embeddings + 0.1 * torch.randn_like(embeddings), labels)


def learner_of(loss, chunk_size: int | None = None, kind: type = MetricLearner, **arguments) -> MetricLearner:
    """A learner whose weights a step of SGD changes by their gradients."""
    rates = {"trunk_lr": 1.0, "embedder_lr": 1.0, "loss_lr": 1.0, "weight_decay": 0.0}
    parts = {"trunk": resnet(), "embedding_size": 8, "optimizer": torch.optim.SGD}
    learner = small_learner(loss, kind, **{**parts, **rates, **arguments})
    learner.build_loss(5)
    learner.caching = [] if chunk_size is None else [GradientCaching(chunk_size)]
    return learner


def trained(learner: MetricLearner, dtype: torch.dtype = torch.float64, **trainer) -> MetricLearner:
    """After one step."""
    precision = {} if "plugins" in trainer else {"precision": "64-true"}
    fits = small_trainer(*learner.caching, limit_val_batches=0, **precision, **trainer)
    fits.fit(learner, DataLoader([batch(dtype)], batch_size=None))
    return learner


def largest_difference(one: MetricLearner, other: MetricLearner) -> float:
    """Of all weights and buffers."""
    state = other.state_dict()
    assert state.keys() == one.state_dict().keys()
    pairs = [(value, state[name]) for name, value in one.state_dict().items() if isinstance(value, torch.Tensor)]
    return max(float((value.double() - others.double()).abs().max()) for value, others in pairs)


METHODS = {
    "contrastive": lambda: {"loss": ContrastiveLoss(neg_margin=0.5)},
    "ntxent, raw": lambda: {"loss": NTXentLoss(temperature=0.5), "normalize": False},
    "mined": lambda: {"loss": TripletMarginLoss(), "miner": BatchHardMiner()},
    "memory": lambda: {"loss": CrossBatchMemory(ContrastiveLoss(), embedding_size=8, memory_size=20)},
    "learner of one's own": lambda: {"loss": MultiSimilarityLoss(), "kind": NoisyLearner},
}


@pytest.mark.parametrize("method", METHODS)
def test_chunks_have_the_gradients_of_the_batch(method):
    whole, chunked = (trained(learner_of(chunk_size=size, **METHODS[method]())) for size in (None, 4))
    assert largest_difference(whole, learner_of(**METHODS[method]())) > 1e-3, "it learns"
    assert largest_difference(whole, chunked) < 1e-10


def by_autograd(learner: MetricLearner, dtype=torch.float64, context=nullcontext) -> dict[str, Tensor]:
    """Gradients of the first step, all activations kept of the two chunks of 5 that a batch is cut into."""
    samples, labels = batch(dtype)
    learner.to(dtype)
    seed_draws(torch.device("cpu"), "step", 0, 0, 0, "trunk", 0)
    with context():
        embeddings = torch.cat([learner(samples[:5]), learner(samples[5:])])
    seed_draws(torch.device("cpu"), "step", 0, 0, 0, "loss")
    learner.compute_loss(embeddings, labels).backward()
    return {name: weight.grad for name, weight in learner.named_parameters()}


def steps_of(chunked: MetricLearner, began: MetricLearner) -> dict[str, Tensor]:
    start = dict(began.named_parameters())
    return {name: start[name].detach() - weight.detach() for name, weight in chunked.named_parameters()}


def test_dropout_and_stochastic_depth_are_drawn_again():
    def learner():
        embedder = functools.partial(MLPEmbedder, hidden_sizes=[16], dropout=0.3)
        trunk = resnet(drop_path_rate=0.5, drop_rate=0.3)
        torch.manual_seed(3)
        return learner_of(MultiSimilarityLoss(), 7, trunk=trunk, embedder=embedder)

    found, expected = steps_of(trained(learner()), learner()), by_autograd(learner())
    assert len(found) > 10
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_running_statistics_are_updated_once_and_warned_of():
    learner, reference = (learner_of(MultiSimilarityLoss(), 7, freeze_batch_norm=False) for _ in range(2))
    expected = by_autograd(reference)
    with pytest.warns(UserWarning, match=r"--model\.freeze_batch_norm"):
        found = steps_of(trained(learner), learner_of(MultiSimilarityLoss()))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    statistics = dict(reference.named_buffers())
    assert {int(value) for name, value in statistics.items() if name.endswith("num_batches_tracked")} == {2}
    for name, value in learner.named_buffers():
        torch.testing.assert_close(value, statistics[name], rtol=1e-12, atol=1e-12)


class Flat(nn.Module):
    num_features = 12

    def forward(self, samples):
        return samples.flatten(1)[:, :12]


def test_two_batches_before_one_backward_update_them_once_each():
    """As a learner of one's own may embed two views of each sample."""
    chunked, whole = (learner_of(ContrastiveLoss(), 5, freeze_batch_norm=False).double() for _ in range(2))
    views = torch.rand(2, 10, 3, 32, 32).double()
    GradientCaching(5).wrap(chunked)
    one, other = (chunked.embed_batch(Batch(view, LABELS)) for view in views)
    (one * other).sum().backward()
    one, other = (torch.cat([whole(view[:5]), whole(view[5:])]) for view in views)
    (one * other).sum().backward()
    torch.testing.assert_close(dict(chunked.named_buffers()), dict(whole.named_buffers()))
    for weight, reference in zip(chunked.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, reference.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_and_its_scaler(dtype):
    """A scale of 2 ** 10 on the loss is off the gradients again when they are applied."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if dtype == torch.float16 else None
    plugin = MixedPrecision("bf16-mixed" if scaler is None else "16-mixed", "cpu", scaler)
    learner = trained(learner_of(MultiSimilarityLoss(), 7), torch.float32, plugins=[plugin])
    autocast = functools.partial(torch.autocast, "cpu", dtype)
    expected = by_autograd(learner_of(MultiSimilarityLoss()), torch.float32, autocast)
    found = steps_of(learner, learner_of(MultiSimilarityLoss()))
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm() / gradient.norm()) < 0.02, name


class Words(nn.Module):
    """A bag of letters; texts come as lists, with a share of each in a dictionary."""

    num_features, modality = 26, "text"

    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.named = named
        self.scale = nn.Parameter(torch.arange(26.0).cos())

    def forward(self, samples):
        texts = samples["texts"] if self.named else samples
        share = torch.stack(samples["share"]) if self.named else 1
        counts = [[text.count(chr(97 + letter)) for letter in range(26)] for text in texts]
        return torch.tensor(counts) * self.scale * share


@pytest.mark.parametrize("named", [False, True])
def test_texts_and_dictionaries_are_cut(named):
    texts = ["which", "card", "has", "not", "come", "yet", "to", "my", "new", "home"]
    samples = {"texts": texts, "share": list(torch.rand(10, 1))} if named else texts
    learner = learner_of(ContrastiveLoss(), trunk=Words(named))
    whole = learner.embed_batch(Batch(samples, LABELS))
    gradient = torch.rand(10, 8)
    whole.backward(gradient)
    expected = learner.trunk.module.scale.grad.clone()
    learner.zero_grad()
    GradientCaching(3).wrap(learner)
    chunked = learner.embed_batch(Batch(samples, LABELS))
    torch.testing.assert_close(chunked, whole)
    chunked.backward(gradient)
    torch.testing.assert_close(learner.trunk.module.scale.grad, expected)


def test_samples_that_cannot_be_cut_and_a_chunk_of_none_are_one_line():
    with pytest.raises(UserError, match="chunk_size 0"):
        GradientCaching(0)
    learner = learner_of(ContrastiveLoss(), trunk=Words(named=True))
    GradientCaching(1).wrap(learner)
    with pytest.raises(UserError, match="GradientCaching"):
        learner.embed_batch(Batch({"texts": ["one", "two"], "share": [0.0]}, LABELS))


class Careless(Flat):
    """Draws what torch's seed says nothing of."""

    def forward(self, samples):
        return super().forward(samples) * (torch.tensor([random.random() for _ in range(12)]) > 0.5)


def test_draws_that_cannot_be_repeated_are_refused():
    with pytest.raises(UserError, match="GradientCaching"):
        trained(learner_of(ContrastiveLoss(), 4, trunk=Careless()))


@pytest.mark.parametrize(("size", "frozen"), [(10, False), (64, False), (4, True)])
def test_a_batch_that_is_no_larger_and_a_frozen_trunk_are_one_pass(size, frozen):
    kept, calls = Careless(), []
    learner = learner_of(ContrastiveLoss(), size, trunk=kept, freeze_trunk=frozen)
    kept.register_forward_hook(lambda *_: calls.append(1))
    trained(learner)
    assert calls == [1]


def test_weights_in_shards_are_refused(monkeypatch):
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    monkeypatch.setattr(Trainer, "strategy", ModelParallelStrategy())
    with pytest.raises(UserError, match=r"--trainer\.strategy .*ModelParallelStrategy"):
        GradientCaching(4).on_train_start(trainer, learner_of(ContrastiveLoss()))
    (learner := learner_of(ContrastiveLoss())).trainer = trainer
    with pytest.raises(
        UserError, match=r"strategy ModelParallelStrategy: a metric loss needs the whole batch.*give ddp"
    ):
        learner.setup("fit")


OWN = {
    "embed_batch": lambda self, batch: MetricLearner.embed_batch(self, batch),
    "training_step": lambda self, batch, batch_idx: self.compute_loss(self(batch[0]), batch[1]),
}


@pytest.mark.parametrize("name", OWN)
def test_a_learner_that_the_callback_cannot_change_is_refused(name):
    kind = type("Own", (MetricLearner,), {name: OWN[name]})
    with pytest.raises(UserError, match=r"GradientCaching.*Own"):
        trained(learner_of(ContrastiveLoss(), 4, kind))
    trained(learner_of(ContrastiveLoss(), 4, kind, freeze_trunk=True))
