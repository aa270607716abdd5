"""NMI, AMI and pairwise F1 against scikit-learn, a hand-worked case and chance."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from levelfield.metrics import partition_scores


@pytest.mark.parametrize("average", ["arithmetic", "geometric"])
@pytest.mark.parametrize("seed", range(5))
def test_equals_scikit_learn(average, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 9, 150) ** 2 - 7
    clusters = np.where(rng.random(150) < 0.4, labels, rng.integers(0, 12, 150))
    scores = partition_scores(torch.from_numpy(clusters), torch.from_numpy(labels), average)
    nmi = sklearn_metrics.normalized_mutual_info_score(labels, clusters, average_method=average)
    ami = sklearn_metrics.adjusted_mutual_info_score(labels, clusters, average_method=average)
    (_, false_positive), (false_negative, positive) = sklearn_metrics.cluster.pair_confusion_matrix(labels, clusters)
    f1 = 2 * positive / (2 * positive + false_positive + false_negative)
    assert scores == pytest.approx({"nmi": nmi, "ami": ami, "f1": f1}, abs=1e-9)
    geometric = sklearn_metrics.normalized_mutual_info_score(labels, clusters, average_method="geometric")
    asked = partition_scores(torch.from_numpy(clusters), torch.from_numpy(labels), metrics=("f1", "nmi_geometric"))
    assert asked == pytest.approx({"f1": f1, "nmi_geometric": geometric}, abs=1e-9)


def test_pairwise_f1_by_hand():
    # Pairs in a cluster: 01 02 12 34. Pairs with one label: 01 23 24 34. Shared: 01 34.
    scores = partition_scores(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([5, 5, 8, 8, 8]))
    assert scores["f1"] == pytest.approx(2 * (2 / 4) * (2 / 4) / (2 / 4 + 2 / 4))


@pytest.mark.parametrize(
    ("num_items", "num_classes", "nmi"), [(5_924, 100, 0.191), (8_131, 98, 0.143), (60_502, 11_316, 0.814)]
)
def test_nmi_of_chance_grows_with_the_number_of_classes_and_ami_does_not(num_items, num_classes, nmi):
    # Issue 4's levels for the sizes of CUB, Cars and SOP: the Reality Check's Table 2 in essence.
    labels = torch.arange(num_items) % num_classes
    clusters = labels[torch.randperm(num_items, generator=torch.Generator().manual_seed(0))]
    scores = partition_scores(clusters, labels)
    assert scores["nmi"] == pytest.approx(nmi, abs=0.007)
    assert scores["ami"] == pytest.approx(0, abs=0.003)


def test_equal_partitions_score_one_whatever_their_names():
    labels = torch.tensor([4, 4, -1, 7, 7, 7])
    assert partition_scores(labels * 3 + 1, labels) == pytest.approx({"nmi": 1, "ami": 1, "f1": 1})


def test_mistakes_raise():
    with pytest.raises(ValueError, match=r"\(3,\) clusters and \(4,\) labels"):
        partition_scores(torch.arange(3), torch.arange(4))
    with pytest.raises(ValueError, match="known are arithmetic, geometric"):
        partition_scores(torch.arange(3), torch.arange(3), average="max")
    with pytest.raises(ValueError, match="no such metric 'vi'; known are nmi, nmi_geometric, ami, f1"):
        partition_scores(torch.arange(3), torch.arange(3), metrics=("vi",))


TRIVIAL = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("average", ["arithmetic", "geometric"])
@pytest.mark.parametrize("clusters", TRIVIAL)
@pytest.mark.parametrize("labels", TRIVIAL)
def test_trivial_partitions_score_as_in_scikit_learn(average, clusters, labels):
    """Collapsed embeddings are one cluster: NMI = AMI = 0, by the geometric mean too."""
    scores = partition_scores(torch.tensor(clusters), torch.tensor(labels), average)
    nmi = sklearn_metrics.normalized_mutual_info_score(labels, clusters, average_method=average)
    ami = sklearn_metrics.adjusted_mutual_info_score(labels, clusters, average_method=average)
    assert (scores["nmi"], scores["ami"]) == pytest.approx((nmi, ami), abs=1e-9)
