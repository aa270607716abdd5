"""The learner: each argument's effect, what it draws, what a checkpoint brings back, and embedding a whole loader."""

import functools

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from small_fit import small_data, small_learner, small_trainer, small_trunk
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models import LinearEmbedder
from levelfield.models.trunks import ModuleTrunk
from levelfield.regularizers import AntiCollapse, CenterInvariance, KoLeo
from levelfield.training.embed import TrunkExtractor, embed
from levelfield.training.learner import MetricLearner
from levelfield.training.start import check_parts

pytestmark = pytest.mark.usefixtures("quiet")


def test_raw_embeddings_can_be_ranked_by_euclidean_distance():
    scores = {}
    for distance in ("cosine", "euclidean"):
        learner, data = small_learner(normalize=False, distance=distance), small_data()
        scores[distance] = small_trainer().validate(learner, datamodule=data, verbose=False)[0]["val/map_at_r"]
        embedded = embed(learner, data.eval_dataloader(data.val_subset))
        alone = retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",), distance=distance)
        assert scores[distance] == pytest.approx(alone["map_at_r"], abs=1e-6)
    assert scores["cosine"] != scores["euclidean"]


class Taught(MetricLearner):
    """With two teachers: one in eval mode, and one to be put into eval mode by hand."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.silent = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).eval()
        self.by_hand = nn.Sequential(nn.Linear(16, 16), nn.Dropout())


def test_a_loaded_learner_embeds_until_it_trains_and_a_teacher_stays_in_eval_mode(tmp_path):
    def fit(learner: MetricLearner) -> dict[str, bool]:
        seen: dict[str, bool] = {}

        def look(trainer, module, *_):
            seen.update({name: part.training for name, part in module.named_modules()})

        trainer = small_trainer(LambdaCallback(on_train_batch_start=look), limit_val_batches=0)
        trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=2))
        trainer.save_checkpoint(tmp_path / "it.ckpt")
        return seen

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


def test_what_embedding_has_moved_to_a_device_can_be_trained(monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module._apply(torch.clone))  # as a move copies tensors
    trunk, images = small_trunk(), torch.rand(4, 3, 32, 32)
    embed(trunk, DataLoader(TensorDataset(images, torch.arange(4))))
    list(TrunkExtractor(trunk, torch.device("cpu"))(DataLoader(images, batch_size=3)))
    trunk(images).sum().backward()
    assert all(weight.grad is not None for weight in trunk.parameters())


def test_minimises_the_loss_and_the_weighted_penalty_of_the_embeddings_or_class_weights():
    samples, labels = torch.randn(10, 6), torch.arange(10) // 2
    of_weights = CenterInvariance(0.3), AntiCollapse(0.2, of="class_weights")
    for loss, regularizer in ((ContrastiveLoss(), KoLeo(0.1)), *((ArcFaceLoss, each) for each in of_weights)):
        given = {"embedding_size": 4, "regularizer": regularizer}
        learner = MetricLearner(ModuleTrunk(nn.Identity(), 6), loss, **given)
        learner.build_loss(5)
        check_parts(learner)
        embeddings = learner(samples)
        found = learner.objective(embeddings, labels)
        points = embeddings if regularizer.of == "embeddings" else learner.loss.class_weights
        torch.testing.assert_close(found["regularizer"], penalty := regularizer(points))
        torch.testing.assert_close(found["loss"], learner.loss(embeddings, labels) + regularizer.weight * penalty)
