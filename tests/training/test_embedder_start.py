"""How a linear embedder starts as a projection: scikit-learn's PCA and shrinkage."""

import numpy as np
import pytest
import torch
from scipy.linalg import eigh
from sklearn import covariance, decomposition
from torch import nn

from levelfield.core.errors import UserError
from levelfield.metrics.whitening import within_class_whitening
from levelfield.models import IdentityEmbedder, LinearEmbedder, MLPEmbedder
from levelfield.training.embedder_start import check_can_start, start_embedder

LABELS = torch.arange(60) % 12  # 12 classes of 5
SPREAD = torch.arange(1, 9)


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(12, 8, generator=generator)
    return means[LABELS] + torch.randn(60, 8, generator=generator) * SPREAD + 3


def within(points: np.ndarray) -> np.ndarray:
    """Differences from the means of the classes, by a loop."""
    rows = [points[i] - points[LABELS.numpy() == label].mean(0) for i, label in enumerate(LABELS.tolist())]
    return np.array(rows)


def test_a_pca_is_scikit_learns_projection_up_to_signs() -> None:
    points = features()
    embedder = LinearEmbedder(8, 5)
    start_embedder(embedder, "pca", points, LABELS)
    expected = decomposition.PCA(5, svd_solver="full").fit(points.double().numpy()).transform(points.numpy())
    found = embedder(points).detach().numpy()
    np.testing.assert_allclose(found, expected * np.sign((found * expected).sum(0)), atol=1e-4)
    # Each direction's largest entry is positive.
    assert (embedder.linear.weight.gather(1, embedder.linear.weight.abs().argmax(1, keepdim=True)) > 0).all()


def test_a_whitening_makes_the_shrunk_covariance_within_classes_the_identity() -> None:
    points = features()
    whitening = within_class_whitening(points, LABELS).numpy()
    differences = within(points.double().numpy())
    s = covariance.ledoit_wolf_shrinkage(differences, assume_centered=True)
    assert 0.01 < s < 0.9
    plain = differences.T @ differences / len(differences)
    shrunk = (1 - s) * plain + s * np.trace(plain) / 8 * np.eye(8)
    np.testing.assert_allclose(whitening @ shrunk @ whitening, np.eye(8), atol=1e-10)
    np.testing.assert_allclose(whitening, whitening.T, atol=1e-12)


def test_a_whitened_start_is_the_generalized_eigenvectors_at_the_length_of_a_pca() -> None:
    """The PCA of whitened features diagonalises the covariance against the one within classes."""
    points = features()
    embedder = LinearEmbedder(8, 3)
    start_embedder(embedder, "whitening", points, LABELS)
    exact = points.double().numpy()
    differences = within(exact)
    shrunk = covariance.ledoit_wolf(differences, assume_centered=True)[0]
    _, vectors = eigh(np.cov(exact.T), shrunk)
    expected = (exact - exact.mean(0)) @ vectors[:, ::-1][:, :3]
    expected *= np.sqrt(3) / np.linalg.norm(vectors[:, ::-1][:, :3])
    found = embedder(points).detach().numpy()
    np.testing.assert_allclose(found, expected * np.sign((found * expected).sum(0)), atol=1e-4)
    assert embedder.linear.weight.norm().item() == pytest.approx(3**0.5)


@pytest.mark.parametrize(
    ("embedder", "key"),
    [
        (MLPEmbedder(8, 4), "MLPEmbedder"),
        (IdentityEmbedder(8, 8), "IdentityEmbedder"),
        (LinearEmbedder(8, 4, bias=False), "model.embedder.bias"),
    ],
)
@pytest.mark.parametrize("kind", ["pca", "whitening"])
def test_what_cannot_be_a_projection_is_refused(embedder: nn.Module, key: str, kind) -> None:
    check_can_start(embedder, "random")
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
