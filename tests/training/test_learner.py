"""The learner: each argument's effect, what it draws, what a checkpoint brings back, and embedding a whole loader."""

import csv
import functools
import threading
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from pretended_gpu import pretended_gpu
from refused import succeeded
from small_fit import small_data, small_learner, small_trainer, small_trunk
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.errors import UserError
from levelfield.data import GroceryStore, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models import LinearEmbedder, TimmTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.regularizers import AntiCollapse, CenterInvariance, KoLeo
from levelfield.training.embed import TrunkExtractor, embed
from levelfield.training.learner import MetricLearner
from levelfield.training.optimization import adamw
from levelfield.training.start import check_parts

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


class Taught(MetricLearner):
    """With two teachers: one in eval mode, and one to be put into eval mode by hand."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.silent = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).eval()
        self.by_hand = nn.Sequential(nn.Linear(16, 16), nn.Dropout())


class Modes(Callback):
    def on_train_batch_start(self, trainer, pl_module, *_):
        self.seen = {name: module.training for name, module in pl_module.named_modules()}


def test_a_loaded_learner_embeds_until_it_trains_and_a_teacher_stays_in_eval_mode(tmp_path):
    def fit(learner: MetricLearner) -> dict[str, bool]:
        trainer = small_trainer(modes := Modes(), limit_val_batches=0)
        trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=2))
        trainer.save_checkpoint(tmp_path / "it.ckpt")
        return modes.seen

    embedder = functools.partial(LinearEmbedder, dropout=0.5)
    fit(small_learner(ArcFaceLoss, Taught, embedder=embedder, freeze_batch_norm=False))
    loaded = Taught.load_from_checkpoint(tmp_path / "it.ckpt")
    assert not any(module.training for module in loaded.modules()), "to embed with"
    assert Taught.load_from_checkpoint(tmp_path / "it.ckpt", map_location="meta").device.type == "meta"
    before = loaded.state_dict()["trunk.model.bn1.running_mean"].clone()
    small_trainer().validate(loaded, datamodule=small_data(), verbose=False)
    seen = fit(loaded)
    assert not torch.equal(loaded.trunk.model.bn1.running_mean, before)
    assert all(map(seen.get, ("", "trunk", "trunk.model.bn1", "embedder.dropout", "loss", "by_hand.1")))
    assert not any(map(seen.__getitem__, ("silent", "silent.1")))
    loaded.train().by_hand.eval()
    seen = fit(loaded)
    assert (seen["embedder.dropout"], seen["by_hand.1"]) == (True, False)


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
    with pretended_gpu() as name:
        assert adamw([nn.Parameter(torch.zeros(2, device=name))]).defaults["fused"]


def test_embedding_leaves_every_module_in_its_mode():
    learner = small_learner(embedding_size=8)
    modes = [module.training for module in learner.modules()]
    assert {*modes} == {True, False}, "the learner trains, its batch norm is frozen"
    images, labels = torch.rand(7, 3, 32, 32), torch.arange(7)
    loader = DataLoader(TensorDataset(images, labels, labels + 10), batch_size=3)
    with pytest.raises(IndexError):
        embed(learner, DataLoader(loader.dataset, sampler=[0, 1, 99]))
    for module in (learner.trunk, learner):
        embedded = embed(module, loader)
        assert [part.training for part in learner.modules()] == modes
    torch.testing.assert_close(embedded.embeddings, learner.eval()(images).detach())
    assert (embedded.labels.tolist(), embedded.index.tolist()) == ([*range(7)], [*range(10, 17)])


def test_a_learner_in_another_precision_embeds_what_a_loader_gives():
    learner = small_learner(embedding_size=8)
    images = torch.rand(5, 3, 32, 32)
    expected = embed(learner, DataLoader(TensorDataset(images, torch.arange(5)))).embeddings
    learner.to(torch.bfloat16)
    embedded = embed(learner, DataLoader(TensorDataset(images, torch.arange(5)))).embeddings
    torch.testing.assert_close(embedded, expected, atol=0.05, rtol=0)
    (features,) = TrunkExtractor(learner.trunk, torch.device("cpu"))(DataLoader(images, batch_size=5))
    assert features.dtype == "float32"
    from_features = [{"features": torch.from_numpy(features), "labels": torch.arange(5)}]
    torch.testing.assert_close(embed(learner, DataLoader(from_features, batch_size=None)).embeddings, embedded)


def embed_all(module: nn.Module, images: torch.Tensor) -> None:
    embed(module, DataLoader(TensorDataset(images, torch.arange(len(images)))))


def extract_all(module: TimmTrunk, images: torch.Tensor) -> None:
    list(TrunkExtractor(module, torch.device("cpu"))(DataLoader(images, batch_size=3)))


@pytest.mark.parametrize("use", [embed_all, extract_all])
def test_what_embedding_has_moved_to_a_device_can_be_trained(use, monkeypatch):
    trunk = small_trunk()
    # To move to another device is to copy each tensor; on the CPU nothing moves.
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module._apply(torch.clone))
    images = torch.rand(4, 3, 32, 32)
    use(trunk, images)
    assert not any(tensor.is_inference() for tensor in (*trunk.parameters(), *trunk.buffers()))
    trunk(images).sum().backward()
    assert all(weight.grad is not None for weight in trunk.parameters())


def test_ctrl_c_leaves_no_thread_behind(data_root: Path) -> None:
    class Interrupted(torch.nn.Identity):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    transforms = ImageTransforms(24, 32)
    data = MetricDataModule(GroceryStore(data_root), transforms=transforms, cache=False, eval_batch_size=4)
    data.setup("fit")
    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        embed(Interrupted(), data.val_dataloader())
    assert threading.enumerate() == before


def test_minimises_the_loss_and_the_weighted_penalty_of_the_embeddings_or_class_weights():
    samples, labels = torch.randn(10, 6), torch.arange(10) // 2
    of_weights = AntiCollapse(0.2, of="class_weights")
    for loss, regularizer in (
        (ContrastiveLoss(), KoLeo(0.1)),
        (ArcFaceLoss, CenterInvariance(0.3)),
        (ArcFaceLoss, of_weights),
    ):
        given = {"embedding_size": 4, "regularizer": regularizer}
        learner = MetricLearner(ModuleTrunk(nn.Identity(), 6), loss, **given)
        learner.build_loss(5)
        check_parts(learner)
        embeddings = learner(samples)
        found = learner.objective(embeddings, labels)
        points = embeddings if regularizer.of == "embeddings" else learner.loss.class_weights
        torch.testing.assert_close(found["regularizer"], penalty := regularizer(points))
        torch.testing.assert_close(found["loss"], learner.loss(embeddings, labels) + regularizer.weight * penalty)


def test_a_fit_logs_the_penalty_by_itself_and_its_checkpoint_has_it(tiny, run, tmp_path):
    words = ["fit", *tiny, "--model.loss", "NTXentLoss", "--trainer.log_every_n_steps", "1", "--output", tmp_path]
    words += ["--data.dataset.num_classes", "24", "--trainer.max_epochs", "1"]
    succeeded(run(*words, "--model.regularizer", "KoLeo", "--model.regularizer.weight", "0.1", "--name", "a"))
    folder = tmp_path / "fit" / "a" / "0"
    with open(folder / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/regularizer"]]
    assert rows
    assert all(float(row["train/loss"]) > 0.1 * float(row["train/regularizer"]) for row in rows)
    found = MetricLearner.load_from_checkpoint(folder / "best.ckpt").regularizer
    assert (type(found), found.weight) == (KoLeo, 0.1)
