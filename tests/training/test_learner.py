"""The learner: each argument's effect, what its checkpoint brings back, how it embeds, and the rate of each weight."""

import functools
import re
from functools import partial

import pytest
import timm
import torch
from lightning.pytorch.callbacks import LambdaCallback
from small_fit import small_data, small_learner, small_trainer, small_trunk
from timm.optim import param_groups_layer_decay
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, NormalizedSoftmaxLoss
from levelfield.metrics import retrieval_metrics
from levelfield.models import LinearEmbedder, TransformersTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.regularizers import AntiCollapse, CenterInvariance, KoLeo
from levelfield.training.callbacks import RetrievalValidation
from levelfield.training.embed import TrunkExtractor, embed
from levelfield.training.learner import MetricLearner
from levelfield.training.start import check_parts

pytestmark = pytest.mark.usefixtures("quiet")
RATE, DECAY = 0.1, 0.5
OF_TIMM = [
    ("test_vit", {"depth": 3}, 4),
    ("vit_small_patch14_reg4_dinov2", {"depth": 3, "embed_dim": 24, "num_heads": 2}, 4),
    ("convnextv2_tiny", {"depths": [1, 1, 2, 1], "dims": [8, 8, 8, 8]}, 6),
]


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

    def __init__(self, noise=0.1, **arguments):
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


def test_a_learner_in_another_precision_embeds_what_a_loader_gives_and_a_moved_one_can_be_trained(monkeypatch):
    learner = small_learner(embedding_size=8)
    images, cpu = DataLoader(TensorDataset(torch.rand(5, 3, 32, 32), torch.arange(5))), torch.device("cpu")
    expected = embed(learner, images).embeddings
    learner.to(torch.bfloat16)
    embedded = embed(learner, images).embeddings
    torch.testing.assert_close(embedded, expected, atol=0.05, rtol=0)
    features = [*TrunkExtractor(learner.trunk, cpu)(image for image, _ in images)]
    assert {each.dtype.name for each in features} == {"float32"}
    from_features = [{"features": torch.from_numpy(each), "labels": torch.zeros(1)} for each in features]
    torch.testing.assert_close(embed(learner, DataLoader(from_features, batch_size=None)).embeddings, embedded)
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module._apply(torch.clone))  # as a move copies tensors
    embed(trunk := small_trunk(), images)
    list(TrunkExtractor(trunk, cpu)(image for image, _ in images))
    trunk(torch.rand(4, 3, 32, 32)).sum().backward()
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


def rates(trunk: nn.Module, **arguments) -> dict[str, float]:
    given = {"trunk_lr": RATE, "embedder_lr": 0.3, "layer_decay": DECAY, **arguments}
    learner = MetricLearner(trunk, loss=ContrastiveLoss(), embedding_size=8, **given)
    groups = learner.configure_optimizers().param_groups
    names = {weight: name for name, weight in learner.named_parameters()}
    found = {names[weight]: group["lr"] for group in groups for weight in group["params"]}
    assert found.keys() == set(names.values())
    assert all((rate == 0.3) == name.startswith("embedder.") for name, rate in found.items())
    assert list(found) == list(names.values())  # an optimizer's state goes by this order
    return {name: rate for name, rate in found.items() if name.startswith("trunk.")}


@pytest.mark.parametrize(("name", "arguments", "above"), OF_TIMM)
def test_each_weight_of_a_trunk_of_timm_has_its_layer_s_rate(name, arguments, above):
    """lr * decay^(L - l), as timm's fine-tuning has it with a head on top."""
    found = rates(small_trunk(name, arguments=arguments))
    assert min(found.values()) == RATE * DECAY**above
    whole = timm.create_model(name, num_classes=3, **arguments)
    names = {weight: each for each, weight in whole.named_parameters()}
    for group in param_groups_layer_decay(whole, layer_decay=DECAY):
        for each in (names[weight] for weight in group["params"]):
            if not each.startswith(("head.weight", "head.bias", "head.fc")):
                assert found[f"trunk.model.{each}"] == RATE * group["lr_scale"]


def test_each_weight_of_an_encoder_of_transformers_has_its_layer_s_rate():
    config = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1}
    trunk = TransformersTrunk("none", weights=None, config=config | {"intermediate_size": 8})
    for name, rate in rates(trunk).items():
        block = re.search(r"encoder\.layer\.(\d)", name)
        assert rate == RATE * DECAY ** (3 - (int(block[1]) + 1 if block else 0)), name


def test_a_trunk_that_does_not_say_its_layers_is_refused():
    with pytest.raises(UserError, match=r"--model\.layer_decay"):
        rates(ModuleTrunk(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), 4))
    with pytest.raises(UserError, match="layer_decay"):
        rates(small_trunk("test_vit"), layer_decay=-1.0)


def test_an_argument_that_no_learner_takes_is_named_with_the_one_to_give():
    names = {"lr": "trunk_lr, embedder_lr or loss_lr", "batch_size": "--data.batch_size"}
    for name, instead in {**names, "embeding_size": "'embedding_size'", "nois": "'noise'"}.items():
        with pytest.raises(UserError, match=f"'{name}'.*{instead}"):
            Taught(trunk=small_trunk("test_vit"), loss=ContrastiveLoss(), **{name: 1})


def own_learner(**arguments) -> MetricLearner:
    """Every part has weights that learn, two are of no part, and a teacher does not learn."""
    loss, regularizer = NormalizedSoftmaxLoss(3, 4), KoLeo(0.1)
    loss.projection, regularizer.direction = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
    given = {"embedding_size": 4, "loss": loss, "regularizer": regularizer, "miner": nn.Linear(4, 1), **arguments}

    def two_layers(features: int, size: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, size))

    learner = MetricLearner(ModuleTrunk(nn.Linear(5, 8), 8), embedder=two_layers, **given)
    learner.projection, learner.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    learner.teacher = nn.Linear(4, 4).requires_grad_(False)
    return learner


def test_what_is_of_no_part_learns_at_the_embedders_rates_in_the_last_group():
    learner = own_learner(trunk_lr=0.1, embedder_lr=0.2, loss_lr=0.3, weight_decay=0.4)
    groups = learner.configure_optimizers().param_groups
    found = [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
    assert found == [("trunk", 0.1, 0.4), ("embedder", 0.2, 0.4), ("loss", 0.3, 0.0), ("rest", 0.2, 0.4)]
    names = {weight: name for name, weight in learner.named_parameters()}
    parts = [{names[weight].partition(".")[0] for weight in group["params"]} for group in groups]
    assert parts == [{"trunk"}, {"embedder"}, {"loss"}, {"miner", "regularizer", "projection", "scale"}]
    assert sum(len(group["params"]) for group in groups) == len(names) - 2  # but for the teacher's
    # A weight that two parts share is in one group.
    learner = own_learner()
    learner.loss.projection = learner.projection
    learner.projection.bias = learner.embedder[2].bias
    groups = learner.configure_optimizers().param_groups
    assert groups[1]["params"][-1] is learner.projection.bias
    assert groups[2]["params"][-1] is learner.projection.weight
    assert [len(group["params"]) for group in groups] == [2, 4, 2, 4]


def test_a_plateau_watches_the_score_that_selects() -> None:
    """It is the only score of this validation."""
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, mode="max", patience=0, threshold=10.0)
    samples = DataLoader(TensorDataset(torch.rand(12, 8), torch.arange(12) % 3), batch_size=12)
    trunk = ModuleTrunk(nn.Identity(), 8)
    learner = MetricLearner(trunk, loss=ContrastiveLoss(), embedding_size=4, lr_scheduler=plateau, embedder_lr=0.5)
    trainer = small_trainer(RetrievalValidation(metrics=("map",), selected_by="map"), max_epochs=3)
    trainer.fit(learner, samples, samples)
    assert [config.monitor for config in trainer.lr_scheduler_configs] == ["val/map"]
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 * 0.1**2)
