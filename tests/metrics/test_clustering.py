"""k-means by each method finds clusters that are there, and is seeded."""

import pytest
import torch

from levelfield.metrics import clustering_metrics


def blobs(noise):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 6
    centres = 4 * torch.eye(8)[:6]
    return centres[labels] + noise * torch.randn(240, 8, generator=generator), labels * 5 - 3


@pytest.mark.parametrize("method", ["auto", "faiss", "exact", "mini-batch"])
def test_finds_separate_clusters(method):
    if method == "faiss":
        pytest.importorskip("faiss")
    embeddings, labels = blobs(0.05)
    scores = [clustering_metrics(embeddings, labels, seed, method=method)["nmi"] for seed in range(4)]
    # One start of k-means may end with two true clusters in one.
    assert max(scores) == pytest.approx(1)
    assert min(scores) > 0.8


@pytest.mark.parametrize("method", ["faiss", "exact", "mini-batch"])
def test_is_seeded(method):
    if method == "faiss":
        pytest.importorskip("faiss")
    embeddings, labels = blobs(2.0)
    once, twice, other = (clustering_metrics(embeddings, labels, seed, method=method) for seed in (1, 1, 2))
    assert once == twice
    assert once != other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "have the label 0"),
        ({"embeddings": torch.full((4, 2), torch.inf)}, "NaN or infinite"),
        ({"method": "spectral"}, "known are auto, exact"),
        ({"average": "max"}, "known are arithmetic, geometric"),
    ],
)
def test_mistakes_raise(change, message):
    arguments = {"embeddings": torch.rand(4, 2), "labels": torch.tensor([0, 0, 1, 1]), **change}
    with pytest.raises(ValueError, match=message):
        clustering_metrics(**arguments)


def test_what_is_installed_changes_no_score():
    """20 classes of 20: k-means of faiss and of scikit-learn end elsewhere."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) // 20
    embeddings = torch.randn(20, 32, generator=generator)[labels] + torch.randn(400, 32, generator=generator)
    assert clustering_metrics(embeddings, labels) == clustering_metrics(embeddings, labels, method="exact")
