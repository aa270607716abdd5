"""Clustering scores: k-means with the true number of clusters, or clusters that you have, against the labels.

Shapes: N embeddings, D dimensions, C clusters.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from levelfield.metrics.counts import Partitions
from levelfield.metrics.definitions import Wanted
from levelfield.metrics.distances import check_embeddings, normalize

METHODS = ("auto", "exact", "mini-batch", "faiss")
EXACT_ITEMS = 20_000  # that `auto` clusters exactly


def clustering_metrics(
    embeddings: Float[Tensor, "items dim"],
    labels: Integer[Tensor, " items"],
    seed: int = 0,
    *,
    method: str = "auto",
    metrics: Iterable[str] | None = None,
) -> dict[str, float]:
    """Compare the labels with a k-means of the L2-normalised embeddings into as many clusters.

    Args:
        embeddings: (N, D) floating point, any scale.
        labels: (N,) integers, any values.
        seed: of the k-means.
        method: scikit-learn's `exact` Lloyd iterations or `mini-batch`; `auto` is exact up to 20,000 items and
            mini-batch beyond; `faiss`, if it is installed, on the GPUs for embeddings of a GPU if it is the one for
            GPUs. Their clusters differ: compare only scores of one method.
        metrics: as in `partition_scores`.

    Returns:
        `nmi`, `ami` and `f1`, or what `metrics` names, as fractions.

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not match, labels that are not integers or
            fewer than two, or an unknown method or metric.
        ImportError: `method="faiss"` without faiss.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> clustering_metrics(embeddings, torch.tensor([0, 0, 1, 1]), method="exact")
        {'nmi': 1.0, 'ami': 1.0, 'f1': 1.0}
    """
    if method not in METHODS:
        raise ValueError(f"no such method {method!r}; known are {', '.join(METHODS)}")
    check_embeddings(embeddings, labels)
    classes = labels.unique()
    if len(classes) < 2:
        raise ValueError(f"all {len(labels)} embeddings have the label {int(labels[0])}; two labels are needed")
    # scikit-learn gets the numbers of a CPU: last bits move clusters.
    points = normalize(embeddings if method == "faiss" else embeddings.cpu())
    clusters = k_means(points, len(classes), seed, method)
    return partition_scores(clusters, labels, metrics)


def partition_scores(
    clusters: Integer[Tensor, " items"],
    labels: Integer[Tensor, " items"],
    metrics: Iterable[str] | None = None,
) -> dict[str, float]:
    """Compare clusters with labels, by scikit-learn; the formulas are in `levelfield.metrics.definitions`.

    Where a ratio is 0 / 0 it is 1 if the partitions are the same, otherwise 0: one cluster of everything against
    several labels has NMI = AMI = 0.

    Args:
        metrics: any of `nmi`, `nmi_geometric`, `ami` and `f1`; None for all but the second.

    Raises:
        ValueError: different lengths, no items, or an unknown metric.
    """
    if clusters.shape != labels.shape or clusters.ndim != 1 or len(labels) == 0:
        raise ValueError(f"{tuple(clusters.shape)} clusters and {tuple(labels.shape)} labels, of (N,) each")
    partitions = Partitions(clusters.cpu().numpy(), labels.cpu().numpy())
    return {key: row.score(partitions) for key, (row, _) in Wanted.parse(metrics, "partition").rows.items()}


def k_means(
    embeddings: Float[Tensor, "items dim"], num_clusters: int, seed: int, method: str = "auto"
) -> Int64[Tensor, " items"]:
    """Cluster of each embedding; `method` as in `clustering_metrics`."""
    embeddings_ND = np.ascontiguousarray(embeddings.cpu().numpy())
    if method == "auto":
        method = "exact" if len(embeddings_ND) <= EXACT_ITEMS else "mini-batch"
    if method == "faiss":
        return _by_faiss(embeddings_ND, num_clusters, seed, embeddings.is_cuda)
    from sklearn.cluster import KMeans, MiniBatchKMeans  # takes a second

    if method == "exact":
        found = KMeans(num_clusters, n_init=1, random_state=seed).fit_predict(embeddings_ND)
    else:
        batch = max(1024, 4 * num_clusters)
        found = MiniBatchKMeans(num_clusters, n_init=1, batch_size=batch, random_state=seed).fit_predict(embeddings_ND)
    return torch.from_numpy(found).long()


def _by_faiss(embeddings_ND: np.ndarray, num_clusters: int, seed: int, on_gpu: bool) -> Int64[Tensor, " items"]:
    import faiss  # an optional extra

    search = faiss.Kmeans(
        embeddings_ND.shape[1],
        num_clusters,
        niter=20,
        seed=seed,
        # Use all points, and do not warn about classes with few samples.
        min_points_per_centroid=1,
        max_points_per_centroid=len(embeddings_ND),
        gpu=on_gpu and faiss.get_num_gpus() > 0,
    )
    search.train(embeddings_ND)
    _, nearest = search.index.search(embeddings_ND, 1)
    return torch.from_numpy(nearest[:, 0])
