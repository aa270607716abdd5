"""Where a fit starts: at a PCA, at class means, at the weights of a checkpoint that has seen no test class."""

import json
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_images import image_options
from PIL import Image
from refused import refused, succeeded
from scipy.linalg import eigh
from sklearn import covariance, decomposition
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from small_fit import small_data, small_learner, small_trainer
from tiny_fit import TINY
from torch.nn.functional import normalize

from levelfield.analysis.verify import validation_scores
from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, SoftTripleLoss, WeightedSum
from levelfield.metrics.projections import within_class_whitening
from levelfield.models import IdentityEmbedder, LinearEmbedder, MLPEmbedder
from levelfield.models.embedder_init import check_can_start, start_embedder
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.training.build import Training
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")
STILL = {"trunk_lr": 0.0, "embedder_lr": 0.0, "loss_lr": 0.0}
MEANS = {"num_classes": 15, "embedding_size": 16, "weight_init": "class_means"}  # 20 classes to train on, 5 validated
NO_RATES = "--model.trunk_lr 0 --model.embedder_lr 0 --model.loss_lr 0 --model.weight_decay 0 --seed_everything 3"
SAME = ("ArcFaceLoss", "2", 0)
STARTS = [SAME, ("ContrastiveLoss", "2", 0), ("ArcFaceLoss", "1", 1), ("ArcFaceLoss", "none", 0)]
RANDOM_SPLIT = ("--data.split", "random", "--data.split_seed", "4")
OTHER = {("--model.embedding_size", "32"): "--model.embedding_size 32", RANDOM_SPLIT: "test classes"}
OTHER |= {("--model.embedder", "MLPEmbedder"): "--model.embedder"}


def test_the_start_scores_as_the_baseline_of_a_study(finished: Path, tmp_path: Path) -> None:
    config = job_config(StudyFolder.begun(finished).spec, Job("contrastive", "run", 0, 1), {})
    config["model"]["embedder_init"] = "pca"
    config["trainer"] |= {"max_epochs": 1, "callbacks": [{"class_path": "ValidateFirst"}]}
    training = Training(config, tmp_path).build()
    training.trainer.fit(training.model, datamodule=training.datamodule)
    baseline = json.loads((finished / "jobs/pretrained/run0/fold1/result.json").read_text())
    scores = validation_scores(tmp_path / "metrics.csv")
    assert scores[-1] == pytest.approx(baseline["validation"]["map_at_r"], abs=1e-6)


def started(**settings) -> tuple[MetricLearner, MetricDataModule]:
    """A learner after a step at rates of 0, and its data."""
    learner = small_learner(freeze_trunk=True, **STILL, **settings)
    data = small_data(features=True, batch_size=16, steps_per_epoch=1)
    small_trainer(limit_val_batches=0).fit(learner, datamodule=data)
    return learner, data


def means_of(learner: MetricLearner, data: MetricDataModule) -> torch.Tensor:
    """The directions of the classes' means, by a loop in float64."""
    found = embed(learner, data.train_samples())
    points = normalize(found.embeddings.double())
    return torch.stack([normalize(points[found.labels == label].sum(0), dim=0) for label in found.labels.unique()])


@pytest.mark.parametrize("init", ["random", "whitening"])
def test_class_weights_start_at_the_means_of_the_embedder_that_was_started(init: str) -> None:
    learner, data = started(loss=ArcFaceLoss(**MEANS), embedder_init=init)
    torch.testing.assert_close(learner.loss.class_weights.double(), means_of(learner, data), rtol=0, atol=1e-6)
    if init != "random":
        features = embed(learner.trunk, data.train_samples())
        start_embedder(learner.embedder, init, features.embeddings, features.labels)
        torch.testing.assert_close(learner.loss.class_weights.double(), means_of(learner, data), rtol=0, atol=1e-6)


def test_any_embedder_and_a_sum_of_losses_start_at_class_means() -> None:
    soft_triple = SoftTripleLoss(**MEANS, centers_per_class=3)
    both = WeightedSum({"pairs": ContrastiveLoss(), "centers": soft_triple}, {"pairs": 1.0, "centers": 1.0})
    learner, data = started(loss=both, embedder=MLPEmbedder, normalize=False)
    centers_CKD = soft_triple.class_weights.detach().double().unflatten(0, (15, 3))
    away_CK = (centers_CKD - means_of(learner, data)[:, None]).norm(dim=2)
    torch.testing.assert_close(away_CK, torch.full((15, 3), 0.1).double(), rtol=0, atol=1e-5)
    assert (centers_CKD[:, 0] - centers_CKD[:, 1]).norm(dim=1).min() > 0.01


def test_a_second_fit_goes_on_where_the_first_ended_and_a_used_trainer_starts_a_new_learner() -> None:
    learner, data = started(loss=ArcFaceLoss(**MEANS), embedder_init="pca")
    with torch.no_grad():
        learner.embedder.linear.weight.mul_(2)
        learner.loss.class_weights.mul_(2)
    before = {name: value.clone() for name, value in learner.state_dict().items() if torch.is_tensor(value)}
    trainer = small_trainer(limit_val_batches=0)
    trainer.fit(learner, datamodule=data)
    assert all(torch.equal(learner.state_dict()[name], value) for name, value in before.items())
    new = small_learner(freeze_trunk=True, **STILL, embedder_init="pca")
    trainer.fit_loop.max_epochs = 2
    trainer.fit(new, datamodule=data)
    torch.testing.assert_close(2 * new.embedder.linear.weight, learner.embedder.linear.weight)


def test_loaders_of_ones_own_give_no_samples_to_start_from(tmp_path: Path) -> None:
    of_embedder, of_loss = small_learner(embedder_init="pca"), small_learner(ArcFaceLoss(**MEANS))
    for learner, key in ((of_embedder, "model.embedder_init"), (of_loss, "model.loss.weight_init")):
        with pytest.raises(UserError, match=key):
            small_trainer(default_root_dir=tmp_path).fit(learner, [], [])


LABELS = torch.arange(60) % 12  # 12 classes of 5


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(12, 8, generator=generator)
    return means[LABELS] + torch.randn(60, 8, generator=generator) * torch.arange(1, 9) + 3


def test_a_pca_is_scikit_learns_projection_up_to_signs() -> None:
    points = features()
    embedder = LinearEmbedder(8, 5)
    start_embedder(embedder, "pca", points, LABELS)
    expected = decomposition.PCA(5, svd_solver="full").fit(points.double().numpy()).transform(points.numpy())
    found = embedder(points).detach().numpy()
    np.testing.assert_allclose(found, expected * np.sign((found * expected).sum(0)), atol=1e-4)
    # Each direction's largest entry is positive.
    assert (embedder.linear.weight.gather(1, embedder.linear.weight.abs().argmax(1, keepdim=True)) > 0).all()


def test_a_whitened_start_is_the_generalized_eigenvectors_at_the_length_of_a_pca() -> None:
    """The PCA of whitened features diagonalises the covariance against the one within classes."""
    points = features()
    embedder = LinearEmbedder(8, 3)
    start_embedder(embedder, "whitening", points, LABELS)
    exact = points.double().numpy()
    within = exact - np.stack([exact[label == LABELS].mean(0) for label in LABELS])
    shrunk = covariance.ledoit_wolf(within, assume_centered=True)[0]
    _, vectors = eigh(np.cov(exact.T), shrunk)
    expected = (exact - exact.mean(0)) @ vectors[:, ::-1][:, :3]
    expected *= np.sqrt(3) / np.linalg.norm(vectors[:, ::-1][:, :3])
    found = embedder(points).detach().numpy()
    np.testing.assert_allclose(found, expected * np.sign((found * expected).sum(0)), atol=1e-4)
    assert embedder.linear.weight.norm().item() == pytest.approx(3**0.5)


@pytest.mark.parametrize("kind", ["pca", "whitening"])
def test_what_cannot_be_a_projection_is_refused(kind) -> None:
    without_bias = LinearEmbedder(8, 4, bias=False)
    for embedder, key in ((MLPEmbedder(8, 4), "MLP"), (IdentityEmbedder(8, 8), "Identity"), (without_bias, r"\.bias")):
        with pytest.raises(UserError, match=f"model.embedder_init {kind}.*{key}"):
            check_can_start(embedder, kind)


@pytest.mark.parametrize("kind", ["pca", "whitening"])
@pytest.mark.parametrize(("samples", "size", "found"), [(6, 7, 6), (40, 12, 8)])
def test_numbers_for_which_there_is_no_component_start_at_0(samples: int, size: int, found: int, kind) -> None:
    points, labels = features()[:samples], LABELS[:samples] % 3
    wide, exact = LinearEmbedder(8, size), LinearEmbedder(8, found)
    for embedder in (wide, exact):
        start_embedder(embedder, kind, points, labels)
    torch.testing.assert_close(wide(points)[:, :found], exact(points))
    assert not wide(points)[:, found:].any()


def test_classes_of_one_sample_each_cannot_be_whitened() -> None:
    with pytest.raises(UserError, match=r"model\.embedder_init whitening"):
        start_embedder(LinearEmbedder(8, 2), "whitening", torch.randn(4, 8), torch.arange(4))
    for points, labels in ((torch.randn(4), torch.arange(4)), (torch.randn(4, 2), torch.arange(3))):
        with pytest.raises(ValueError, match="shape"):
            within_class_whitening(points, labels)


def test_a_start_at_the_discriminants_of_few_classes() -> None:
    points, labels = features(), LABELS % 3
    embedder = LinearEmbedder(8, 5)
    start_embedder(embedder, "lda", points, labels)
    exact = points.double().numpy()
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(exact, labels.numpy())
    expected = normalize(torch.from_numpy(lda.transform(exact - exact.mean(0))))
    found = embedder(points).detach()
    assert not found[:, 2:].any(), "two directions separate three classes"
    np.testing.assert_allclose(normalize(found) @ normalize(found).T, expected @ expected.T, atol=1e-4)
    with pytest.raises(UserError, match=r"model\.embedder_init lda"):
        start_embedder(embedder, "lda", points, 0 * labels)


def command_of(*more: Any, loss: str = "ArcFaceLoss") -> list[Any]:
    small = "--trainer.max_epochs 1 --data.batch_size 16 --data.fold 2 --name it"
    return ["fit", *TINY, "--model.loss", loss, *small.split(), *more]


@pytest.mark.parametrize(("loss", "fold", "warns"), STARTS)
def test_a_new_training_starts_at_the_weights(loss: str, fold: str, warns: int, fitted: Path, run, tmp_path) -> None:
    """And its loss as new where loss or classes differ."""
    first = fitted / "best.ckpt"
    command = command_of(*NO_RATES.split(), "--data.fold", fold, "--ckpt_path", first, loss=loss)
    how = pytest.warns(UserWarning, match=r"best\.ckpt' was trained on .* validation fold") if warns else nullcontext()
    with how:
        succeeded(run(*command, "--output", tmp_path))
    then, now = (torch.load(path, weights_only=True) for path in (first, tmp_path / "fit/it/0/best.ckpt"))
    assert (now["epoch"], now["global_step"]) == (0, 4)
    loaded = "" if (loss, fold, warns) == SAME else ("trunk.", "embedder.")
    for name, weight in then["state_dict"].items():
        if name.startswith(loaded) and not name.endswith("num_batches_tracked"):
            assert torch.equal(weight, now["state_dict"][name]), name
    weights, before = (each["state_dict"].get("loss.class_weights") for each in (now, then))
    assert not loaded or weights is None or not torch.equal(weights, before)
    assert fold == "none" or [*validation_scores(tmp_path / "fit/it/0/metrics.csv")] == [0]


def test_a_checkpoint_of_other_weights_or_data_is_refused(fitted: Path, run, tmp_path: Path) -> None:
    for more in OTHER:
        refused(run(*command_of("--ckpt_path", fitted / "best.ckpt", "--output", tmp_path, *more)), OTHER[more])
        assert not list(tmp_path.glob("fit/it/*"))
    checkpoint, other = torch.load(fitted / "best.ckpt", weights_only=True), tmp_path / "other.ckpt"
    checkpoint["datamodule_hyper_parameters"]["dataset"]["class_path"] = "levelfield.data.datasets.Omniglot"
    torch.save(checkpoint, other)
    refused(run(*command_of("--ckpt_path", other, "--output", tmp_path)), "other.ckpt", "--data.dataset")
    del checkpoint["datamodule_hyper_parameters"]  # as after a fit with loaders of your own
    torch.save(checkpoint, other)
    refused(run(*command_of("--ckpt_path", other, "--output", tmp_path)), "other.ckpt", "load_from_checkpoint")


@pytest.mark.slow
def test_another_folder_with_classes_of_the_same_names_is_warned_of(run, tmp_path: Path) -> None:
    for folder, sample, number in product(("one", "two", "again/one"), range(4), range(16)):
        (place := tmp_path / folder / f"{number:02d}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number * 10, sample * 9, 90 * (folder == "two"))).save(place / f"{sample}.png")

    def command(name: str, *more: Any) -> list[Any]:
        short = ["--model.loss", "ArcFaceLoss", "--trainer.max_epochs", "1", "--data.steps_per_epoch", "1"]
        return ["fit", *image_options(TINY, tmp_path, tmp_path / name), *short, *more]

    succeeded(run(*command("one"), "--name", "it", "--output", tmp_path))
    best, split = tmp_path / "fit/it/0/best.ckpt", ["--data.split", "random", "--data.split_seed", "1"]
    for option in ("--ckpt_path", "--model.trunk.weights"):
        with pytest.warns(UserWarning, match=r"best\.ckpt' .*unless") as warned:
            succeeded(run(*command("two", *split), option, best, "--output", tmp_path / option))
        assert "test classes" in str(warned[0].message)
    refused(run(*command("again/one", *split), "--ckpt_path", best, "--output", tmp_path), "test classes")


def test_trunk_weights_of_a_checkpoint_are_looked_at_too(fitted: Path, run, tmp_path: Path) -> None:
    command = [*command_of(), "--model.trunk.weights", fitted / "best.ckpt", "--output", tmp_path]
    assert run(*command)[0] == 0
    with pytest.warns(UserWarning, match=r"best\.ckpt' was trained on .* validation fold"):
        assert run(*command, "--data.fold", "1")[0] == 0
    refused(run(*command, *RANDOM_SPLIT), "test classes")
