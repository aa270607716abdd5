"""Embedders: what each computes and refuses, and how one starts as a projection: scikit-learn's PCA and shrinkage."""

import numpy as np
import pytest
import torch
from scipy.linalg import eigh
from sklearn import covariance, decomposition
from torch import nn

from levelfield.core.errors import UserError
from levelfield.metrics.whitening import within_class_whitening
from levelfield.models import (
    IdentityEmbedder,
    LayerNormEmbedder,
    LayerNormLinearEmbedder,
    LinearEmbedder,
    MLPEmbedder,
)
from levelfield.models.embedder_start import check_can_start, start_embedder

FEATURES = torch.tensor([[1.0, 2.0, 3.0, 6.0], [-1.0, 0.0, 0.0, 1.0]])


def parameters(embedder: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in embedder.parameters())


def test_dropout_leaves_half_of_the_features_out_in_training_alone():
    torch.manual_seed(0)
    embedder = LinearEmbedder(1000, 1, bias=False, dropout=0.5)
    torch.nn.init.ones_(embedder.linear.weight)
    doubled = embedder(torch.ones(1, 1000)).item() / 2
    assert 440 < doubled < 560
    assert embedder.eval()(torch.ones(1, 1000)).item() == 1000
    with pytest.raises(UserError, match=r"dropout 1\.0 must be"):
        LinearEmbedder(4, 3, dropout=1.0)


def test_layer_norm_has_nothing_to_learn():
    mean, deviation = 3.0, 14**0.5 / 2  # of 1 2 3 6, the deviation dividing by 4
    expected = (torch.tensor([1.0, 2.0, 3.0, 6.0]) - mean) / deviation
    torch.testing.assert_close(LayerNormEmbedder(4, 4)(FEATURES)[0], expected, rtol=1e-4, atol=1e-4)
    embedder = LayerNormLinearEmbedder(4, 3, bias=False)
    torch.testing.assert_close(embedder(FEATURES)[0], embedder.linear.weight @ expected, rtol=1e-4, atol=1e-4)
    assert (parameters(LayerNormEmbedder(4, 4)), parameters(embedder)) == (0, 12)


def test_a_linear_layer_starts_orthogonal_and_is_followed_by_layer_norm():
    embedder = LinearEmbedder(6, 4, orthogonal=True, layer_norm=True)
    torch.testing.assert_close(embedder.linear.weight @ embedder.linear.weight.T, torch.eye(4))
    assert embedder.linear.bias.count_nonzero() == 0
    embeddings = embedder(torch.randn(8, 6))
    torch.testing.assert_close(embeddings.mean(1), torch.zeros(8), rtol=0, atol=1e-6)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.full((8,), 2.0), rtol=1e-3, atol=0)
    assert parameters(embedder) == 28


@pytest.mark.parametrize("embedder", [IdentityEmbedder, LayerNormEmbedder])
def test_what_keeps_the_features_refuses_another_size(embedder):
    with pytest.raises(UserError, match=r"keeps the trunk's 2048 features: give --model\.embedding_size 2048, not 128"):
        embedder(2048, 128)


def test_the_text_head_of_vasilev_and_dyakonov():
    head = MLPEmbedder(768, 256, hidden_sizes=[768], dropout=0.2)
    assert [type(layer).__name__ for layer in head.layers] == ["Linear", "GELU", "Dropout", "Linear"]
    assert head.layers[2].p == 0.2
    assert parameters(head) == 768 * 768 + 768 + 768 * 256 + 256
    features = torch.randn(5, 768)
    hidden = features @ head.layers[0].weight.T + head.layers[0].bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    expected = hidden @ head.layers[3].weight.T + head.layers[3].bias
    torch.testing.assert_close(head.eval()(features), expected, rtol=1e-4, atol=1e-5)


def test_fehervaris_proxy_softmax_embeds_by_layer_norm_dropout_and_weight_norm():
    """Section 2.9: its rows' lengths are learnt apart from their directions; v g / |v| by hand."""
    embedder = LayerNormLinearEmbedder(6, 3, bias=False, dropout=0.5, weight_norm=True)
    assert parameters(embedder) == 3 + 3 * 6
    lengths, directions = (getattr(embedder.linear.parametrizations.weight, f"original{k}") for k in (0, 1))
    with torch.no_grad():
        lengths.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
        directions.mul_(7.0)  # says nothing
    features = torch.randn(5, 6)
    normed = (features - features.mean(1, keepdim=True)) / (features.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    rows = directions / directions.norm(dim=1, keepdim=True) * torch.tensor([[1.0], [2.0], [3.0]])
    torch.testing.assert_close(embedder.eval()(features), normed @ rows.T)
    with pytest.raises(UserError, match=r"dropout 1\.0 must be"):
        LayerNormLinearEmbedder(4, 3, dropout=1.0)
    torch.manual_seed(0)
    half = (LayerNormLinearEmbedder(1000, 1, dropout=0.5).dropout(torch.ones(1000)) == 0).float().mean()
    assert half.item() == pytest.approx(0.5, abs=0.06)


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
