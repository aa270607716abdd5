"""How the trunk trains: the gradients of a batch in chunks, or with less kept, and batch norm over processes."""

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
from tiny_text import DISTILBERT, tiny_text_model
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.core.errors import UserError
from levelfield.losses import ContrastiveLoss, MultiSimilarityLoss
from levelfield.models import MLPEmbedder, TimmTrunk, TransformersTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.batches import Batch
from levelfield.training.callbacks import GradientCaching, TimmSyncBatchNorm
from levelfield.training.callbacks.trunk_compute import recompute_activations
from levelfield.training.learner import MetricLearner
from levelfield.training.steps import seed_draws

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]
LABELS = torch.arange(10) // 2
IMAGES = torch.rand(10, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
TEXTS = ["Where is my new card?", "it has not come.", "Why was I charged twice?"]
DEEP = {
    "vit": ("test_vit", {"depth": 6, "drop_path_rate": 0.3}),
    "convnext": ("convnextv2_tiny", {"depths": [1, 1, 6, 1], "dims": [8, 8, 8, 8]}),
    "resnet": ("test_resnet", {}),
}


def resnet(**arguments) -> nn.Module:
    """A trunk whose residual branches have gradients from the first step on."""
    torch.manual_seed(1)
    return small_trunk(arguments={"zero_init_last": False, **arguments})


class NoisyLearner(MetricLearner):
    """A learner of one's own, with a step between trunk and embedder and one before the loss."""

    def embed_features(self, features):
        return super().embed_features(features.tanh())

    def compute_loss(self, embeddings, labels):
        return super().compute_loss(embeddings + 0.1 * torch.randn_like(embeddings), labels)


def learner_of(loss=ContrastiveLoss, kind: type = MetricLearner, **arguments) -> MetricLearner:
    """A learner whose weights a step of SGD changes by their gradients."""
    rates = {"trunk_lr": 1.0, "embedder_lr": 1.0, "weight_decay": 0.0, "optimizer": torch.optim.SGD}
    return small_learner(loss, kind, **{"trunk": resnet(), "embedding_size": 8, **rates, **arguments})


def in_chunks(learner: MetricLearner, dtype: torch.dtype = torch.float64, **trainer) -> dict[str, Tensor]:
    """The gradients of a step, in at most 7 samples at once."""
    start = {name: weight.detach().clone() for name, weight in learner.named_parameters()}
    given = {"limit_val_batches": 0, **({} if "plugins" in trainer else {"precision": "64-true"}), **trainer}
    small_trainer(GradientCaching(7), **given).fit(learner, DataLoader([(IMAGES.to(dtype), LABELS)], batch_size=None))
    return {name: start[name] - weight.detach() for name, weight in learner.named_parameters()}


def by_autograd(learner: MetricLearner, dtype=torch.float64, context=nullcontext) -> dict[str, Tensor]:
    """The same with all activations kept of the two chunks of 5 that the batch is cut into."""
    samples = IMAGES.to(dtype)
    learner.to(dtype)
    seed_draws(torch.device("cpu"), "step", 0, 0, 0, "trunk", 0)
    with context():
        embeddings = torch.cat([learner(samples[:5]), learner(samples[5:])])
    seed_draws(torch.device("cpu"), "step", 0, 0, 0, "loss")
    learner.compute_loss(embeddings, LABELS).backward()
    return {name: weight.grad for name, weight in learner.named_parameters()}


def test_dropout_stochastic_depth_and_the_draws_of_ones_own_learner_are_drawn_again():
    def learner():
        embedder = functools.partial(MLPEmbedder, hidden_sizes=[16], dropout=0.3)
        trunk = resnet(drop_path_rate=0.5, drop_rate=0.3)
        return learner_of(MultiSimilarityLoss(), NoisyLearner, trunk=trunk, embedder=embedder)

    found = in_chunks(learner())
    assert len(found) > 10
    torch.testing.assert_close(found, by_autograd(learner()), rtol=1e-9, atol=1e-10)


def test_running_statistics_are_updated_once_and_warned_of():
    learner, reference = (learner_of(MultiSimilarityLoss(), freeze_batch_norm=False) for _ in range(2))
    with pytest.warns(UserWarning, match=r"--model\.freeze_batch_norm"):
        found = in_chunks(learner)
    torch.testing.assert_close(found, by_autograd(reference), rtol=1e-9, atol=1e-10)
    statistics = dict(reference.named_buffers())
    assert {int(value) for name, value in statistics.items() if name.endswith("num_batches_tracked")} == {2}
    for name, value in learner.named_buffers():
        torch.testing.assert_close(value, statistics[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_and_its_scaler(dtype):
    """A scale of 2 ** 10 on the loss is off the gradients again when they are applied."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if dtype == torch.float16 else None
    plugin = MixedPrecision("bf16-mixed" if scaler is None else "16-mixed", "cpu", scaler)
    found = in_chunks(learner_of(MultiSimilarityLoss()), torch.float32, plugins=[plugin])
    autocast = functools.partial(torch.autocast, "cpu", dtype)
    for name, gradient in by_autograd(learner_of(MultiSimilarityLoss()), torch.float32, autocast).items():
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
    learner, gradient = learner_of(trunk=Words()), torch.rand(10, 8)
    whole = learner.embed_batch(Batch(samples, LABELS))
    whole.backward(gradient)
    expected = learner.trunk.module.scale.grad.clone()
    learner.zero_grad()
    GradientCaching(3).wrap(learner)
    chunked = learner.embed_batch(Batch(samples, LABELS))
    torch.testing.assert_close(chunked, whole)
    chunked.backward(gradient)
    torch.testing.assert_close(learner.trunk.module.scale.grad, expected)


def careless() -> nn.Module:
    """A trunk that draws what torch's seed says nothing of."""
    trunk = ModuleTrunk(nn.Flatten(), 3 * 32 * 32)
    trunk.register_forward_hook(lambda module, given, found: found * random.random())
    return trunk


OwnBatch = type("OwnBatch", (MetricLearner,), {"embed_batch": lambda self, batch: None})
own_step = {"training_step": lambda self, batch, batch_idx: self.compute_loss(self(batch[0]), batch[1])}
OwnStep = type("OwnStep", (MetricLearner,), own_step)


def uncut() -> None:
    learner = learner_of(trunk=Words())
    GradientCaching(1).wrap(learner)
    learner.embed_batch(Batch({"texts": ["one", "two"], "share": [0.0]}, LABELS))


def in_shards(use: Callable) -> None:
    learner = learner_of()
    learner.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with mock.patch.object(Trainer, "strategy", ModelParallelStrategy()):
        use(learner)


SHARDS = r"--trainer\.strategy .*ModelParallelStrategy"
REFUSED = {
    "a chunk of none": (lambda: GradientCaching(0), "chunk_size 0"),
    "samples that cannot be cut": (uncut, "GradientCaching"),
    "draws that cannot be repeated": (lambda: in_chunks(learner_of(trunk=careless())), "GradientCaching"),
    "weights in shards": (lambda: in_shards(lambda it: GradientCaching(4).on_train_start(it.trainer, it)), SHARDS),
    "a fit in shards": (lambda: in_shards(lambda it: it.setup("fit")), "strategy ModelParallelStrategy.*give ddp"),
    "an own embed_batch": (lambda: in_chunks(learner_of(kind=OwnBatch)), "GradientCaching.*OwnBatch"),
    "an own step": (lambda: in_chunks(learner_of(kind=OwnStep)), "GradientCaching.*OwnStep"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cached_is_refused(case):
    with pytest.raises(UserError, match=REFUSED[case][1]):
        REFUSED[case][0]()


def stepped(kind: str, folder, checkpointing: bool) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Embeddings and gradients in float64, with dropout, and the bytes that the forward keeps for the backward."""
    torch.manual_seed(0)
    if kind == "text":
        model = tiny_text_model(folder, {**DISTILBERT, "hidden_dim": 64, "n_layers": 6})
        trunk = TransformersTrunk(str(model), weights=None, max_length=64)
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
    assert gradients
    torch.testing.assert_close(same, gradients, rtol=1e-6, atol=1e-12)
    assert fewer < (0.8 if kind == "resnet" else 0.5) * kept  # the ResNet has a block a stage, so its inputs are much


def test_where_it_cannot_be_is_said():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    with pytest.raises(UserError, match=r"GradientCheckpointing: ModuleTrunk cannot do it"):
        recompute_activations(ModuleTrunk(linear, num_features=4))
    with pytest.raises(UserError, match=r"batch norm twice.*--model.freeze_batch_norm true"):
        recompute_activations(small_trunk(), freeze_batch_norm=False)


def synced(trunk: str, **trainer) -> MetricLearner:
    learner = small_learner(trunk=small_trunk(trunk)).eval()
    learner.trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, **trainer)
    return learner


@pytest.mark.parametrize("trunk", ["test_efficientnet", "test_resnet"])  # the first has activations in its batch norm
def test_the_converted_network_computes_the_same(trunk: str) -> None:
    learner, images = synced(trunk, sync_batchnorm=True), torch.rand(2, 3, 32, 32)
    before, names = learner(images), list(learner.state_dict())
    TimmSyncBatchNorm().setup(learner.trainer, learner, "fit")
    norms = [module for module in learner.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(isinstance(module, nn.SyncBatchNorm) for module in norms)
    torch.testing.assert_close(learner.eval()(images), before)
    assert list(learner.state_dict()) == names
    assert learner.trainer.strategy._layer_sync is None  # or Lightning would convert again, its own way


def test_batch_norm_that_learns_on_a_cpu_is_refused_and_nothing_is_converted_unasked() -> None:
    learner = synced("test_resnet")
    TimmSyncBatchNorm().setup(learner.trainer, learner, "fit")
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in learner.modules())
    learner = synced("test_resnet", sync_batchnorm=True)
    learner.freeze_batch_norm = False
    with pytest.raises(UserError, match=r"--trainer\.sync_batchnorm true"):
        TimmSyncBatchNorm().setup(learner.trainer, learner.train(), "fit")
