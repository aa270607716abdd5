"""A batch in chunks has the gradients of the batch: of autograd through all chunks at once, with the same draws."""

import functools
import random
from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from small_fit import small_learner, small_trainer, small_trunk
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss, MultiSimilarityLoss
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


def test_dropout_stochastic_depth_and_the_draws_of_ones_own_learner_are_drawn_again():
    def learner():
        embedder = functools.partial(MLPEmbedder, hidden_sizes=[16], dropout=0.3)
        trunk = resnet(drop_path_rate=0.5, drop_rate=0.3)
        torch.manual_seed(3)
        return learner_of(MultiSimilarityLoss(), 7, NoisyLearner, trunk=trunk, embedder=embedder)

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
    """A bag of letters; a batch is a dictionary of texts and a share of each."""

    num_features, modality = 26, "text"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(26.0).cos())

    def forward(self, samples):
        counts = [[text.count(chr(97 + letter)) for letter in range(26)] for text in samples["texts"]]
        return torch.tensor(counts) * self.scale * torch.stack(samples["share"])


def test_texts_and_dictionaries_are_cut():
    texts = ["which", "card", "has", "not", "come", "yet", "to", "my", "new", "home"]
    samples = {"texts": texts, "share": list(torch.rand(10, 1))}
    learner, gradient = learner_of(ContrastiveLoss(), trunk=Words()), torch.rand(10, 8)
    whole = learner.embed_batch(Batch(samples, LABELS))
    whole.backward(gradient)
    expected = learner.trunk.module.scale.grad.clone()
    learner.zero_grad()
    GradientCaching(3).wrap(learner)
    chunked = learner.embed_batch(Batch(samples, LABELS))
    torch.testing.assert_close(chunked, whole)
    chunked.backward(gradient)
    torch.testing.assert_close(learner.trunk.module.scale.grad, expected)


class Careless(nn.Flatten):
    """Draws what torch's seed says nothing of."""

    num_features = 12

    def forward(self, samples):
        return super().forward(samples)[:, :12] * random.random()


class OwnBatch(MetricLearner):
    def embed_batch(self, batch):
        return super().embed_batch(batch)


class OwnStep(MetricLearner):
    def training_step(self, batch, batch_idx):
        return self.compute_loss(self(batch[0]), batch[1])


def uncut() -> None:
    learner = learner_of(ContrastiveLoss(), trunk=Words())
    GradientCaching(1).wrap(learner)
    learner.embed_batch(Batch({"texts": ["one", "two"], "share": [0.0]}, LABELS))


def in_shards(use: Callable) -> None:
    learner = learner_of(ContrastiveLoss())
    learner.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with mock.patch.object(Trainer, "strategy", ModelParallelStrategy()):
        use(learner)


REFUSED = {
    "a chunk of none": (lambda: GradientCaching(0), "chunk_size 0"),
    "samples that cannot be cut": (uncut, "GradientCaching"),
    "draws that cannot be repeated": (
        lambda: trained(learner_of(ContrastiveLoss(), 4, trunk=Careless())), "GradientCaching",
    ),
    "weights in shards": (
        lambda: in_shards(lambda it: GradientCaching(4).on_train_start(it.trainer, it)),
        r"--trainer\.strategy .*ModelParallelStrategy",
    ),
    "a fit in shards": (lambda: in_shards(lambda it: it.setup("fit")), "strategy ModelParallelStrategy.*give ddp"),
    "an own embed_batch": (lambda: trained(learner_of(ContrastiveLoss(), 4, OwnBatch)), "GradientCaching.*OwnBatch"),
    "an own step": (lambda: trained(learner_of(ContrastiveLoss(), 4, OwnStep)), "GradientCaching.*OwnStep"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cached_is_refused(case):
    with pytest.raises(UserError, match=REFUSED[case][1]):
        REFUSED[case][0]()
