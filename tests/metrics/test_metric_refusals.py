"""What a metric does not take is named in one line."""

from functools import partial

import numpy as np
import pytest
import torch

from levelfield import metrics
from levelfield.metrics import PCA, RetrievalMetrics, retrieval_metrics, verification_metrics

POINTS, LABELS, ONE, EACH = torch.rand(4, 2), torch.tensor([0, 0, 1, 1]), torch.zeros(4).long(), torch.arange(4)
GALLERY = {"gallery": POINTS, "gallery_labels": LABELS}
SETS = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1]]).bool()
NOT_FINITE = torch.tensor([[1.0, 0], [torch.nan, 1], [0, 1], [torch.inf, 1]])


def accumulated(embeddings, labels, index=EACH, **settings):
    metric = RetrievalMetrics(**settings)
    metric.update(embeddings, labels, index)
    return metric.compute()


def reduced(embeddings, labels, fitted_on=None):
    return (PCA(4) if fitted_on is None else PCA(4).fit(fitted_on)).transform(embeddings)


def partitioned(embeddings, labels, clusters=LABELS, **settings):
    return metrics.partition_scores(clusters, labels, **settings)


hierarchical = partial(metrics.hierarchical_precision_at_r, coarse=LABELS + 10)


# fmt: off
REFUSALS = [
    (retrieval_metrics, {"embeddings": NOT_FINITE[[1, 0, 0, 0]]}, "NaN or infinite values, the first is row 0"),
    (retrieval_metrics, {"embeddings": torch.zeros(0, 2), "labels": ONE[:0]}, "empty"),
    (retrieval_metrics, {"embeddings": torch.ones(3, 2)}, "4 labels for 3 embeddings"),
    (retrieval_metrics, {"embeddings": torch.ones(4)}, r"shape \(N, D\)"),
    (retrieval_metrics, {"labels": torch.zeros(4)}, "must be an integer"),
    (retrieval_metrics, {"labels": ONE}, "use two labels"),
    (retrieval_metrics, {"labels": EACH}, "none of the 4 queries shares its label"),
    (retrieval_metrics, {"gallery": POINTS}, "go together"),
    (retrieval_metrics, {**GALLERY, "gallery": torch.ones(4, 3)}, "gallery is torch.float32 of 3 dimensions"),
    (retrieval_metrics, {"metrics": ("map@r",)}, "no such metric 'map@r'; known are map_at_r"),
    (retrieval_metrics, {"metrics": "map_at_r"}, "one string"),
    (retrieval_metrics, {"metrics": ()}, "metrics is empty"),
    (retrieval_metrics, {"recall_at": (0,)}, "at least 1"),
    (retrieval_metrics, {"distance": "manhattan"}, "no such distance 'manhattan'; known are cosine"),
    (retrieval_metrics, {"num_queries": 1}, "an interval needs at least 2"),
    (retrieval_metrics, {"groups": EACH[:3]}, "groups must hold 4 integers"),
    (retrieval_metrics, {"groups": EACH, **GALLERY}, "gallery_groups must hold 4 integers"),
    (retrieval_metrics, {"labels": SETS[:3]}, "3 labels for 4 embeddings"),
    (retrieval_metrics, {"labels": SETS.long()}, "int64 of shape"),
    (retrieval_metrics, {"labels": SETS, **GALLERY, "gallery_labels": SETS[:, :4]}, "of 4 labels .* of 6 labels"),
    (retrieval_metrics, {"labels": torch.ones(4, 1).bool()}, "all 4 gallery items"),
    (accumulated, {"index": EACH[:3]}, "index must hold 4 integers"),
    (accumulated, {"is_query": np.ones(4, bool)}, "none of the 4 queries shares its label"),  # without a gallery
    (accumulated, {"labels": SETS}, "num_labels=None"),
    (accumulated, {"labels": SETS, "num_labels": 5}, "num_labels=5"),
    *((accumulated, {"embeddings": NOT_FINITE, "distance": distance},
       r"^2 of 4 embeddings have NaN or infinite values: samples \[1, 3\]$")
      for distance in ("cosine", "euclidean", "hamming")),
    (metrics.clustering_metrics, {"labels": ONE}, "have the label 0"),
    (metrics.clustering_metrics, {"method": "spectral"}, "known are auto, exact"),
    (partitioned, {"clusters": EACH[:3]}, r"\(3,\) clusters and \(4,\) labels"),
    (partitioned, {"metrics": ("vi",)}, "no such metric 'vi'; known are nmi, ami, f1, nmi_geometric"),
    (verification_metrics, {"labels": EACH}, "no pair of one class among the 4"),
    (verification_metrics, {"labels": ONE}, "no pair of two classes"),
    (verification_metrics, {"labels": SETS}, "no label sets"),
    (verification_metrics, {"metrics": ("map_at_r",)}, "no such metric 'map_at_r'"),
    (verification_metrics, {"metrics": ("tar_at_far_1e-0",)}, "at least 1"),
    (verification_metrics, {"metrics": "eer"}, "is one string"),
    (verification_metrics, {"gallery": POINTS}, "pass both or neither"),
    (hierarchical, {"labels": LABELS * 4 - 4, "coarse": EACH}, "the class -4 is of several coarse classes"),
    (hierarchical, {"coarse": EACH[:3]}, "3 coarse for 4 embeddings"),
    (metrics.embedding_health, {"labels": ONE}, "no pairs of both kinds"),
    (reduced, {"fitted_on": torch.ones(3, 9)}, "=4 must be between 0 and min.*=3"),
    (reduced, {"fitted_on": torch.ones(9)}, "Expected 2D array"),
    (reduced, {}, "before PCA"),
    (reduced, {"fitted_on": torch.rand(9, 5)}, "fitted on 5 dimensions"),
]
# fmt: on


@pytest.mark.parametrize(("metric", "change", "message"), REFUSALS)
def test_a_mistake_is_named_in_one_line(metric, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        metric(**{"embeddings": POINTS, "labels": LABELS, **change})
    assert "\n" not in str(caught.value) or message == "Expected 2D array"  # scikit-learn's
