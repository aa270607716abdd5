"""Where a fit starts: at the score of a study's baseline, and at class means that a loop computes again."""

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch.nn.functional import normalize

from levelfield import losses
from levelfield.analysis.integrity import validation_scores
from levelfield.data import ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, SoftTripleLoss, WeightedSum
from levelfield.models import MLPEmbedder, TimmTrunk
from levelfield.models.embedder_start import start_embedder
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.training.build import build
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

STILL = {"trunk_lr": 0.0, "embedder_lr": 0.0, "loss_lr": 0.0}
MEANS = {"num_classes": 15, "embedding_size": 16, "weight_init": "class_means"}  # 20 classes to train on, 5 validated

pytestmark = pytest.mark.usefixtures("quiet")


def test_the_start_scores_as_the_baseline_of_a_study(finished: Path, tmp_path: Path) -> None:
    for fold in range(2):
        config = job_config(StudyFolder.begun(finished).spec, Job("contrastive", "run", 0, fold), {})
        config["model"]["embedder_init"] = "pca"
        config["trainer"] |= {"max_epochs": 1, "callbacks": [{"class_path": "ValidateFirst"}]}
        training = build(config, tmp_path / str(fold), progress=False)
        training.trainer.fit(training.model, datamodule=training.datamodule)
        baseline = json.loads((finished / f"jobs/pretrained/run0/fold{fold}/result.json").read_text())
        scores = validation_scores(tmp_path / str(fold) / "metrics.csv")
        assert scores[-1] == pytest.approx(baseline["validation"]["map_at_r"], abs=1e-6)


def fitted(**settings) -> tuple[MetricLearner, MetricDataModule]:
    """A learner after a step at rates of 0, and its data."""
    torch.manual_seed(0)
    learner = MetricLearner(
        TimmTrunk("test_resnet", weights=None), embedding_size=16, freeze_trunk=True, **STILL, **settings
    )
    data = MetricDataModule(
        Glyphs(num_classes=40, image_size=32), features=True, batch_size=16, steps_per_epoch=1,
        transforms=ImageTransforms(crop_size=32, resize=32, scale=(0.6, 1.0), horizontal_flip=False),
    )  # fmt: skip
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(learner, datamodule=data)
    return learner, data


def means_of(learner: MetricLearner, data: MetricDataModule) -> torch.Tensor:
    """The directions of the classes' means, by a loop in float64."""
    found = embed(learner, data.train_samples())
    by_class: dict[int, list[torch.Tensor]] = {}
    for embedding, label in zip(normalize(found.embeddings.double()), found.labels.tolist(), strict=True):
        by_class.setdefault(label, []).append(embedding)
    return torch.stack([normalize(sum(by_class[label]), dim=0) for label in sorted(by_class)])


@pytest.mark.parametrize("init", ["random", "pca", "whitening"])
def test_class_weights_start_at_the_means_of_the_embedder_that_was_started(init: str) -> None:
    learner, data = fitted(loss=ArcFaceLoss(**MEANS), embedder_init=init)
    torch.testing.assert_close(learner.loss.class_weights.double(), means_of(learner, data), rtol=0, atol=1e-6)
    if init != "random":
        features = embed(learner.trunk, data.train_samples())
        start_embedder(learner.embedder, init, features.embeddings, features.labels)
        torch.testing.assert_close(learner.loss.class_weights.double(), means_of(learner, data), rtol=0, atol=1e-6)


def test_any_embedder_and_a_sum_of_losses_start_at_class_means() -> None:
    soft_triple = SoftTripleLoss(**MEANS, centers_per_class=3)
    both = WeightedSum({"pairs": ContrastiveLoss(), "centers": soft_triple}, {"pairs": 1.0, "centers": 1.0})
    learner, data = fitted(loss=both, embedder=MLPEmbedder, normalize=False)
    centers_CKD = soft_triple.class_weights.detach().double().unflatten(0, (15, 3))
    away_CK = (centers_CKD - means_of(learner, data)[:, None]).norm(dim=2)
    torch.testing.assert_close(away_CK, torch.full((15, 3), 0.1).double(), rtol=0, atol=1e-5)
    assert (centers_CKD[:, 0] - centers_CKD[:, 1]).norm(dim=1).min() > 0.01


def test_a_second_fit_goes_on_where_the_first_ended() -> None:
    learner, data = fitted(loss=ArcFaceLoss(**MEANS), embedder_init="pca")
    with torch.no_grad():
        learner.embedder.linear.weight.mul_(2)
        learner.loss.class_weights.mul_(2)
    before = {name: value.clone() for name, value in learner.state_dict().items() if torch.is_tensor(value)}
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(learner, datamodule=data)
    for name, value in before.items():
        assert torch.equal(learner.state_dict()[name], value), name


def test_other_class_weights_are_drawn_as_before() -> None:
    weights = {}
    for init in ("normal", "uniform", "class_means"):
        torch.manual_seed(0)
        weights[init] = ArcFaceLoss(15, 16, weight_init=init).class_weights
    assert torch.equal(weights["normal"], weights["class_means"]), "until they are set"
    torch.manual_seed(0)
    assert torch.equal(weights["normal"], torch.randn(15, 16))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"loss": ContrastiveLoss, "embedder_init": "pca"}, "model.embedder_init"),
        ({"loss": ArcFaceLoss(**MEANS)}, "model.loss.weight_init"),
    ],
)
def test_loaders_of_ones_own_give_no_samples_to_start_from(settings: dict, key: str, tmp_path: Path) -> None:
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), embedding_size=16, **settings)
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_checkpointing=False, max_epochs=1)
    with pytest.raises(UserError, match=key):
        trainer.fit(learner, train_dataloaders=[], val_dataloaders=[])


@pytest.mark.parametrize(
    "name",
    [
        *("NormalizedSoftmaxLoss", "ProxyNCALoss", "ProxyAnchorLoss", "CosFaceLoss", "ArcFaceLoss", "SphereFaceLoss"),
        *("SubCenterArcFaceLoss", "SoftTripleLoss", "ProxyTripletLoss", "AdaFaceLoss", "MagFaceLoss"),
        "PotentialFieldLoss",
    ],
)
def test_every_loss_with_class_weights_can_start_at_class_means(name: str) -> None:
    loss = getattr(losses, name)(4, 6, weight_init="class_means")
    embeddings, labels = torch.randn(20, 6), torch.arange(20) % 4
    loss.start_at_class_means(embeddings, labels)
    means = normalize(torch.stack([normalize(embeddings)[labels == c].mean(0) for c in range(4)]))
    away = (loss.class_weights.detach().unflatten(0, (4, -1)) - means[:, None]).norm(dim=2)
    assert away.max().item() == pytest.approx(0.1 if loss.centers_per_class > 1 else 0.0, abs=1e-6)
    loss(embeddings, labels).backward()
    assert loss.class_weights.grad.isfinite().all()
    with pytest.raises(ValueError, match="class_means"):
        loss.start_at_class_means(embeddings[1:3], labels[1:3])


def test_sub_centers_that_start_together_part() -> None:
    """Of equal centres the gradients are equal, or 0 but for the first."""
    loss = SoftTripleLoss(4, 6, centers_per_class=2, weight_init="class_means")
    loss.start_at_class_means(torch.randn(20, 6), torch.arange(20) % 4)
    loss(torch.randn(20, 6), torch.arange(20) % 4).backward()
    gradients = loss.class_weights.grad.unflatten(0, (4, 2))
    assert (gradients[:, 0] - gradients[:, 1]).norm(dim=1).min() > 0
