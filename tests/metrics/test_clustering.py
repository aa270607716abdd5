"""k-means finds clusters that are there; NMI, AMI and pairwise F1 against scikit-learn, by hand and chance."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from pretended_gpu import any_device
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from levelfield.metrics import clustering_metrics, partition_scores

device = any_device


def blobs(noise):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 6
    centres = 4 * torch.eye(8)[:6]
    return centres[labels] + noise * torch.randn(240, 8, generator=generator), labels * 5 - 3


@pytest.mark.parametrize("method", ["auto", "faiss", "exact", "mini-batch"])
def test_finds_separate_clusters_and_is_seeded(method):
    if method == "faiss":
        pytest.importorskip("faiss")
    embeddings, labels = blobs(0.05)
    scores = [clustering_metrics(embeddings, labels, seed, method=method)["nmi"] for seed in range(4)]
    # One start of k-means may end with two true clusters in one.
    assert max(scores) == pytest.approx(1)
    assert min(scores) > 0.8
    embeddings, labels = blobs(2.0)
    once, twice, other = (clustering_metrics(embeddings, labels, seed, method=method) for seed in (1, 1, 2))
    assert once == twice
    assert once != other


def test_what_is_installed_and_the_device_change_no_score(device):
    """20 classes of 20: k-means of faiss and of scikit-learn end elsewhere."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) // 20
    embeddings = torch.randn(20, 32, generator=generator)[labels] + torch.randn(400, 32, generator=generator)
    found = clustering_metrics(embeddings.to(device), labels.to(device))
    assert found == clustering_metrics(embeddings, labels, method="exact")


def partitions(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 9, 150) ** 2 - 7
    return np.where(rng.random(150) < 0.4, labels, rng.integers(0, 12, 150)), labels


TRIVIAL = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize(("clusters", "labels"), [*map(partitions, range(3)), *product(TRIVIAL, TRIVIAL)])
def test_equals_scikit_learn_and_f1_a_loop_over_pairs(clusters, labels):
    """Collapsed embeddings are one cluster: NMI = AMI = 0, by the geometric mean too."""
    given = torch.tensor(clusters), torch.tensor(labels)
    nmi, geometric = (
        sklearn_metrics.normalized_mutual_info_score(labels, clusters, average_method=average)
        for average in ("arithmetic", "geometric")
    )
    ami = sklearn_metrics.adjusted_mutual_info_score(labels, clusters)
    shared = [(a == b, c == d) for (a, c), (b, d) in combinations(zip(*map(Tensor.tolist, given), strict=True), 2)]
    either = sum(cluster + label for cluster, label in shared)
    f1 = 2 * sum(cluster and label for cluster, label in shared) / either if either else 1
    assert partition_scores(*given) == pytest.approx({"nmi": nmi, "ami": ami, "f1": f1}, abs=1e-9)
    found = partition_scores(*given, metrics=("f1", "nmi_geometric"))
    assert list(found) == ["f1", "nmi_geometric"]
    assert found["nmi_geometric"] == pytest.approx(geometric, abs=1e-9)


@pytest.mark.parametrize(
    ("num_items", "num_classes", "nmi"), [(5_924, 100, 0.191), (8_131, 98, 0.143), (60_502, 11_316, 0.814)]
)
def test_nmi_of_chance_grows_with_the_number_of_classes_and_ami_does_not(num_items, num_classes, nmi):
    # The sizes of CUB, Cars and SOP: the Reality Check's Table 2 in essence.
    labels = torch.arange(num_items) % num_classes
    clusters = labels[torch.randperm(num_items, generator=torch.Generator().manual_seed(0))]
    scores = partition_scores(clusters, labels)
    assert scores["nmi"] == pytest.approx(nmi, abs=0.007)
    assert scores["ami"] == pytest.approx(0, abs=0.003)
