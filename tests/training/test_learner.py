"""The learner: what trains, at which rates, what a checkpoint brings back, and whose losses fit."""

import functools

import pytest
import pytorch_metric_learning.losses
import pytorch_metric_learning.miners
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, MultiSimilarityLoss
from levelfield.metrics import retrieval_metrics
from levelfield.miners import MultiSimilarityMiner
from levelfield.models import LayerNormLinearEmbedder, LinearEmbedder, TimmTrunk
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner
from levelfield.training.optimization import adamw

pytestmark = pytest.mark.usefixtures("quiet")


def small_data(**arguments) -> MetricDataModule:
    transforms = ImageTransforms(crop_size=32, resize=32, scale=(0.6, 1.0), horizontal_flip=False)
    return MetricDataModule(Glyphs(num_classes=40), steps_per_epoch=4, transforms=transforms, **arguments)


def small_learner(loss, **arguments) -> MetricLearner:
    torch.manual_seed(0)
    return MetricLearner(TimmTrunk("test_resnet", weights=None), loss=loss, embedding_size=16, **arguments)


def small_trainer(**arguments) -> Trainer:
    settings = {
        "accelerator": "cpu",
        "max_epochs": 1,
        "num_sanity_val_steps": 0,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{**settings, **arguments})


class MyLoss(nn.Module):
    """Somebody's plain module: pulls embeddings of a class to their mean."""

    def forward(self, embeddings, labels):
        means = torch.stack([embeddings[labels == label].mean(0) for label in labels])
        return (embeddings - means).square().sum(1).mean()


@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        (ContrastiveLoss(), None),
        (ArcFaceLoss, None),
        (functools.partial(ArcFaceLoss, margin=10.0), None),
        (MultiSimilarityLoss(), MultiSimilarityMiner()),
        (MyLoss(), None),
        (pytorch_metric_learning.losses.TripletMarginLoss(), pytorch_metric_learning.miners.BatchHardMiner()),
        (pytorch_metric_learning.losses.CircleLoss(), MultiSimilarityMiner()),
        (ContrastiveLoss(), pytorch_metric_learning.miners.MultiSimilarityMiner()),
    ],
)
def test_losses_and_miners_of_ours_and_others_train(loss, miner):
    learner = small_learner(loss, miner=miner)
    before = {name: value.clone() for name, value in learner.named_parameters()}
    trainer = small_trainer()
    trainer.fit(learner, datamodule=small_data())
    assert 0 <= trainer.callback_metrics["val/map_at_r"] <= 1
    moved = {
        name.partition(".")[0]
        for name, value in learner.named_parameters()
        if name in before and not torch.equal(value, before[name])
    }
    assert moved == {"trunk", "embedder"}
    if not isinstance(loss, nn.Module):
        assert learner.num_classes == 15  # 20 of the 40 letters are for training, a fourth of them validates


def test_embeddings_have_unit_length_unless_told_otherwise():
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(small_learner(ContrastiveLoss())(images).norm(dim=1), torch.ones(4))
    raw = small_learner(ContrastiveLoss(), normalize=False)(images).norm(dim=1)
    assert not torch.allclose(raw, torch.ones(4), atol=1e-2)


def test_raw_embeddings_can_be_ranked_by_euclidean_distance():
    scores = {}
    for distance in ("cosine", "euclidean"):
        learner = small_learner(ContrastiveLoss(), normalize=False, distance=distance)
        data = small_data()
        scores[distance] = small_trainer().validate(learner, datamodule=data, verbose=False)[0]["val/map_at_r"]
        embedded = embed(learner, data.eval_dataloader(data.val_subset))
        alone = retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",), distance=distance)
        assert scores[distance] == pytest.approx(alone["map_at_r"], abs=1e-6)
    assert scores["cosine"] != scores["euclidean"]


def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scale():
    for frozen in (True, False):
        learner = small_learner(ContrastiveLoss(), freeze_batch_norm=frozen)
        norms = [module for module in learner.trunk.modules() if isinstance(module, nn.BatchNorm2d)]
        means = [norm.running_mean.clone() for norm in norms]
        scales = [norm.weight.detach().clone() for norm in norms]
        small_trainer().fit(learner, datamodule=small_data())
        assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, means, strict=True)) == frozen
        assert any(not torch.equal(norm.weight, scale) for norm, scale in zip(norms, scales, strict=True))


def test_trunk_embedder_and_loss_have_their_own_rates():
    learner = small_learner(ArcFaceLoss, trunk_lr=0.1, embedder_lr=0.2, loss_lr=0.3, weight_decay=0.4)
    learner.build_loss(num_classes=5)
    groups = {
        group["name"]: (group["lr"], group["weight_decay"]) for group in learner.configure_optimizers().param_groups
    }
    assert groups == {"trunk": (0.1, 0.4), "embedder": (0.2, 0.4), "loss": (0.3, 0.0)}


def test_a_trainer_that_would_take_the_samples_in_their_order_is_refused():
    with pytest.raises(UserError, match="overfit_batches"):
        small_trainer(overfit_batches=1).fit(small_learner(ContrastiveLoss()), datamodule=small_data())


@pytest.mark.parametrize("log_every_n_steps", [50, 0])  # no logging is no division by zero
def test_a_loss_that_is_not_finite_stops_and_names_the_step(log_every_n_steps):
    class Diverging(nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.sum() / 0

    trainer = small_trainer(log_every_n_steps=log_every_n_steps)
    with pytest.raises(UserError, match="step 0"):
        trainer.fit(small_learner(Diverging()), datamodule=small_data())


class Draws(nn.Module):
    """A loss that keeps what it draws."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, embeddings, labels):
        self.seen.append(float(torch.rand(())))
        return embeddings.square().sum()


@pytest.mark.parametrize(("accumulated", "steps"), [(1, 4), (2, 2), (4, 1), (3, 2)])
def test_each_accumulated_batch_has_draws_of_its_own(accumulated, steps):
    loss = Draws()
    trainer = small_trainer(accumulate_grad_batches=accumulated)
    trainer.fit(small_learner(loss), datamodule=small_data())
    assert trainer.global_step == steps
    assert len(set(loss.seen)) == 4


def test_the_first_batch_of_a_step_draws_the_same_however_many_are_accumulated():
    draws = {}
    for accumulated in (1, 2):
        loss = Draws()
        trainer = small_trainer(accumulate_grad_batches=accumulated)
        trainer.fit(small_learner(loss), datamodule=small_data())
        draws[accumulated] = loss.seen
    assert draws[2][::2] == draws[1][:2]


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_the_loss_sees_float32_whatever_the_precision(precision):
    seen = []

    class Watching(ContrastiveLoss):
        def compute(self, embeddings, *args):
            seen.append((embeddings.dtype, torch.is_autocast_enabled("cpu")))
            return super().compute(embeddings, *args)

    small_trainer(precision=precision).fit(small_learner(Watching()), datamodule=small_data())
    assert set(seen) == {(torch.float32, False)}


@pytest.mark.parametrize("loss", [ArcFaceLoss, functools.partial(ArcFaceLoss, margin=10.0)])
def test_checkpoint_of_a_learner_made_in_python_loads_whole(loss, tmp_path):
    learner = small_learner(loss, embedder=LayerNormLinearEmbedder, normalize=False)
    trainer = small_trainer()
    trainer.fit(learner, datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    loaded = MetricLearner.load_from_checkpoint(tmp_path / "it.ckpt")
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(loaded(images), learner.eval()(images))
    assert loaded.loss.margin == (28.6 if loss is ArcFaceLoss else 10.0)
    assert not loaded.normalize


class Taught(MetricLearner):
    """With three teachers: one in eval mode, one whose weights stay, and one to be put into eval mode by hand."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.silent = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).eval()
        self.frozen = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).requires_grad_(False)
        self.by_hand = nn.Sequential(nn.Linear(16, 16), nn.Dropout())


def taught() -> Taught:
    embedder = functools.partial(LinearEmbedder, dropout=0.5)
    trunk = TimmTrunk("test_resnet", weights=None)
    return Taught(trunk=trunk, loss=ArcFaceLoss, embedder=embedder, embedding_size=16, freeze_batch_norm=False)


def test_a_loaded_learner_trains_as_one_that_was_made_with_its_weights(tmp_path):
    trainer = small_trainer()
    trainer.fit(taught(), datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    loaded, made = Taught.load_from_checkpoint(tmp_path / "it.ckpt"), taught()
    assert not any(module.training for module in loaded.modules()), "to embed with"
    made.build_loss(15)
    made.load_state_dict(loaded.state_dict())
    before = loaded.state_dict()["trunk.model.bn1.running_mean"].clone()
    for learner in (loaded, made):
        small_trainer().fit(learner, datamodule=small_data())
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert not torch.equal(loaded.trunk.model.bn1.running_mean, before)


def test_a_loaded_learners_teacher_stays_in_eval_mode_in_a_fit(tmp_path):
    modes = {}

    class Modes(Callback):
        def on_train_batch_start(self, trainer, pl_module, *_):
            modes.update({name: module.training for name, module in pl_module.named_modules()})

    trainer = small_trainer()
    trainer.fit(taught(), datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    loaded = Taught.load_from_checkpoint(tmp_path / "it.ckpt")
    small_trainer().validate(loaded, datamodule=small_data(), verbose=False)
    small_trainer(callbacks=[Modes()]).fit(loaded, datamodule=small_data())
    for name in ("", "trunk", "trunk.model.bn1", "embedder.dropout", "loss", "by_hand.1"):
        assert modes[name], name
    for name in ("silent", "silent.1", "frozen", "frozen.1"):
        assert not modes[name], name

    loaded = Taught.load_from_checkpoint(tmp_path / "it.ckpt").train()
    loaded.by_hand.eval()
    small_trainer(callbacks=[Modes()]).fit(loaded, datamodule=small_data())
    assert (modes["embedder.dropout"], modes["by_hand.1"]) == (True, False)


def test_checkpoint_with_a_loss_object_loads_for_embedding_and_says_so(tmp_path):
    learner = small_learner(MyLoss())
    trainer = small_trainer()
    trainer.fit(learner, datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    with pytest.warns(UserWarning, match=r"it\.ckpt.* loss"):
        loaded = MetricLearner.load_from_checkpoint(tmp_path / "it.ckpt")
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(loaded(images), learner.eval()(images))
    with pytest.raises(UserError, match=r"loss=\.\.\."):
        small_trainer().fit(loaded, datamodule=small_data())


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
