"""The learner: each argument's effect, what it draws, and what a checkpoint brings back."""

import functools

import pytest
import torch
from lightning.pytorch import Callback
from small_fit import small_data, small_learner, small_trainer
from torch import nn

from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models import LinearEmbedder
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner
from levelfield.training.optimization import adamw

pytestmark = pytest.mark.usefixtures("quiet")


def test_embeddings_have_unit_length_unless_told_otherwise():
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(small_learner()(images).norm(dim=1), torch.ones(4))
    assert not torch.allclose(small_learner(normalize=False)(images).norm(dim=1), torch.ones(4), atol=1e-2)


def test_raw_embeddings_can_be_ranked_by_euclidean_distance():
    scores = {}
    for distance in ("cosine", "euclidean"):
        learner, data = small_learner(normalize=False, distance=distance), small_data()
        scores[distance] = small_trainer().validate(learner, datamodule=data, verbose=False)[0]["val/map_at_r"]
        embedded = embed(learner, data.eval_dataloader(data.val_subset))
        alone = retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",), distance=distance)
        assert scores[distance] == pytest.approx(alone["map_at_r"], abs=1e-6)
    assert scores["cosine"] != scores["euclidean"]


class Draws(nn.Module):
    """A loss that keeps what it draws."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, embeddings, labels):
        self.seen.append(float(torch.rand(())))
        return embeddings.square().sum()


def test_each_accumulated_batch_has_draws_of_its_own_and_the_first_of_a_step_the_same_whatever_is_accumulated():
    draws = {}
    for accumulated, steps in ((1, 4), (2, 2), (3, 2)):
        loss, trainer = Draws(), small_trainer(accumulate_grad_batches=accumulated, limit_val_batches=0)
        trainer.fit(small_learner(loss), datamodule=small_data(batch_size=8))
        assert trainer.global_step == steps
        assert len(set(loss.seen)) == 4
        draws[accumulated] = loss.seen
    assert draws[2][::2] == draws[1][:2]


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_the_loss_sees_float32_whatever_the_precision(precision):
    seen = []

    class Watching(ContrastiveLoss):
        def compute(self, embeddings, *args):
            seen.append((embeddings.dtype, torch.is_autocast_enabled("cpu")))
            return super().compute(embeddings, *args)

    trainer = small_trainer(precision=precision, limit_val_batches=0)
    trainer.fit(small_learner(Watching()), datamodule=small_data(batch_size=8, steps_per_epoch=1))
    assert seen == [(torch.float32, False)]


class Taught(MetricLearner):
    """With three teachers: one in eval mode, one whose weights stay, and one to be put into eval mode by hand."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.silent = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).eval()
        self.frozen = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).requires_grad_(False)
        self.by_hand = nn.Sequential(nn.Linear(16, 16), nn.Dropout())


class Modes(Callback):
    def on_train_batch_start(self, trainer, pl_module, *_):
        self.seen = {name: module.training for name, module in pl_module.named_modules()}


def taught() -> Taught:
    embedder = functools.partial(LinearEmbedder, dropout=0.5)
    return small_learner(ArcFaceLoss, Taught, embedder=embedder, freeze_batch_norm=False)


def fit_shortly(learner: MetricLearner, *callbacks: Callback, path=None):
    trainer = small_trainer(*callbacks, limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=2))
    if path:
        trainer.save_checkpoint(path)


def test_a_loaded_learner_trains_as_one_that_was_made_with_its_weights_and_a_teacher_stays_in_eval_mode(tmp_path):
    fit_shortly(taught(), path=tmp_path / "it.ckpt")
    loaded, made = Taught.load_from_checkpoint(tmp_path / "it.ckpt"), taught()
    assert not any(module.training for module in loaded.modules()), "to embed with"
    made.build_loss(15)
    made.load_state_dict(loaded.state_dict())
    before = loaded.state_dict()["trunk.model.bn1.running_mean"].clone()
    small_trainer().validate(loaded, datamodule=small_data(), verbose=False)
    modes = Modes()
    for learner in (made, loaded):
        fit_shortly(learner, modes)
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert not torch.equal(loaded.trunk.model.bn1.running_mean, before)
    for name in ("", "trunk", "trunk.model.bn1", "embedder.dropout", "loss", "by_hand.1"):
        assert modes.seen[name], name
    for name in ("silent", "silent.1", "frozen", "frozen.1"):
        assert not modes.seen[name], name

    loaded = Taught.load_from_checkpoint(tmp_path / "it.ckpt").train()
    loaded.by_hand.eval()
    fit_shortly(loaded, modes)
    assert (modes.seen["embedder.dropout"], modes.seen["by_hand.1"]) == (True, False)


def test_what_is_no_checkpoint_of_ours_is_named(tmp_path):
    (tmp_path / "torn.ckpt").write_bytes(b"PK\x03\x04 torn")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    for name in ("none.ckpt", "torn.ckpt", "other.ckpt"):
        with pytest.raises(UserError, match=name):
            MetricLearner.load_from_checkpoint(tmp_path / name)


def test_the_default_optimizer_is_torchs_adamw_by_one_kernel():
    def trained(optimizer) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last), nn.Linear(8, 4), nn.Linear(4, 1).double()]
        made = optimizer([{"params": part.parameters(), "lr": 10.0**-place} for place, part in enumerate(parts, 2)])
        for _ in range(30):
            made.zero_grad()
            values = parts[1](parts[0](torch.randn(4, 3, 6, 6)).mean((2, 3)))
            parts[2](values.double()).square().mean().backward()
            made.step()
        return [weight.detach() for part in parts for weight in part.parameters()]

    for ours, plain in zip(trained(adamw), trained(torch.optim.AdamW), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    fused = adamw([nn.Parameter(torch.zeros(2))])
    assert fused.defaults["fused"]
    assert not fused._step_supports_amp_scaling, "Lightning would refuse to clip its gradients"
    assert not adamw([nn.Parameter(torch.zeros(2, device="meta"))]).defaults["fused"]
