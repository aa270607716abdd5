"""Agreement of two partitions of the same items: NMI, AMI and pairwise F1.

scikit-learn's AMI loops over all pairs of clusters, which takes minutes for Stanford Online Products. The expectation
depends only on the sizes of clusters, and there are few different sizes.

Shapes: N items, A distinct cluster sizes of one partition, B of the other, C clusters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from levelfield.metrics.table import PARTITION_METRICS


@dataclass(frozen=True)
class Partitions:
    """The counts that scores of two partitions of the same items need.

    Attributes:
        clusters_C: number of items of each cluster.
        labels_C: number of items of each class.
        joint_C: number of items that a cluster and a class share, for each pair that shares any.
        average: mean of the entropies, `arithmetic` or `geometric`.
    """

    clusters_C: Int64[Tensor, " clusters"]
    labels_C: Int64[Tensor, " classes"]
    joint_C: Int64[Tensor, " both"]
    average: str

    @cached_property
    def information(self) -> float:
        """Mutual information I, in nats."""
        return float(entropy(self.clusters_C) + entropy(self.labels_C) - entropy(self.joint_C))

    @cached_property
    def expected_information(self) -> float:
        """E[I] over permutations."""
        return expected_information(self.clusters_C, self.labels_C)

    def mean_entropy(self, average: str | None = None) -> float:
        """avg(H_1, H_2), in nats."""
        entropies = torch.stack([entropy(self.clusters_C), entropy(self.labels_C)])
        return float(entropies.mean() if (average or self.average) == "arithmetic" else entropies.prod().sqrt())

    @property
    def pairs_in_both(self) -> int:
        """Pairs of items that share cluster and class."""
        return num_pairs(self.joint_C)

    @property
    def pairs_in_each(self) -> int:
        """Pairs that share a cluster, and those that share a class."""
        return num_pairs(self.clusters_C) + num_pairs(self.labels_C)

    def ratio(self, part: float, whole: float) -> float:
        """part / whole; 0 / 0 is 1 if the partitions are the same, otherwise 0."""
        same = float(len(self.clusters_C) == len(self.labels_C) == len(self.joint_C))
        return part / whole if abs(whole) >= 1e-12 else same


def partition_scores(
    clusters: Integer[Tensor, " items"],
    labels: Integer[Tensor, " items"],
    average: str = "arithmetic",
    metrics: Iterable[str] | None = None,
) -> dict[str, float]:
    """Compare clusters with labels; the formulas are in `levelfield.metrics.table`.

    Where a ratio is 0 / 0 it is 1 if the partitions are the same, otherwise 0, as in scikit-learn: one cluster of
    everything against several labels has NMI = AMI = 0 whatever the average.

    Args:
        average: mean of the entropies in `nmi` and `ami`, `arithmetic` or `geometric`; papers use both.
        metrics: any of `nmi`, `nmi_geometric`, `ami` and `f1`; None for all but the second.

    Raises:
        ValueError: different lengths, no items, or an unknown metric or average.
    """
    if clusters.shape != labels.shape or clusters.ndim != 1 or len(labels) == 0:
        raise ValueError(f"{tuple(clusters.shape)} clusters and {tuple(labels.shape)} labels, of (N,) each")
    if average not in ("arithmetic", "geometric"):
        raise ValueError(f"no such average {average!r}; known are arithmetic, geometric")
    wanted = [key for key, row in PARTITION_METRICS.items() if row.usual] if metrics is None else list(metrics)
    if unknown := set(wanted) - set(PARTITION_METRICS):
        raise ValueError(f"no such metric {min(unknown)!r}; known are {', '.join(PARTITION_METRICS)}")
    _, clusters_N, clusters_C = clusters.cpu().unique(return_inverse=True, return_counts=True)
    _, labels_N, labels_C = labels.cpu().unique(return_inverse=True, return_counts=True)
    joint_C = (clusters_N * len(labels_C) + labels_N).unique(return_counts=True)[1]
    partitions = Partitions(clusters_C, labels_C, joint_C, average)
    return {key: PARTITION_METRICS[key].score(partitions) for key in wanted}


def num_pairs(counts_C: Int64[Tensor, " clusters"]) -> int:
    return int((counts_C * (counts_C - 1) // 2).sum())


def entropy(counts_C: Int64[Tensor, " clusters"]) -> Float64[Tensor, ""]:
    """Entropy of the cluster of a random item, in nats."""
    return torch.special.entr(counts_C.double() / counts_C.sum()).sum()


def expected_information(first_C: Int64[Tensor, " first"], second_C: Int64[Tensor, " second"]) -> float:
    """Mutual information, in nats, that random partitions with these cluster sizes have on average.

    Two clusters of sizes a and b share n items with hypergeometric probability, and then add n/N log(N n / (a b)).
    """
    num_items = float(first_C.sum())
    sizes_A, times_A = first_C.unique(return_counts=True)
    sizes_B, times_B = (tensor.double() for tensor in second_C.unique(return_counts=True))

    def log_factorial(counts: Tensor) -> Tensor:
        return torch.lgamma(counts + 1)

    total = 0.0
    for size, times in zip(sizes_A.double(), times_A.tolist(), strict=True):
        shared_n = torch.arange(1, int(torch.minimum(size, sizes_B.max())) + 1, dtype=torch.float64)
        for sizes_b, times_b in zip(sizes_B.split(4096), times_B.split(4096), strict=True):
            b, n = sizes_b[:, None], shared_n[None, :]
            possible = (n <= b) & (n >= size + b - num_items)
            log_probability = (
                log_factorial(size)
                + log_factorial(b)
                + log_factorial(num_items - size)
                + log_factorial(num_items - b)
                - log_factorial(torch.tensor(num_items, dtype=torch.float64))
                - log_factorial(n)
                - log_factorial((size - n).clamp(min=0))
                - log_factorial((b - n).clamp(min=0))
                - log_factorial((num_items - size - b + n).clamp(min=0))
            )
            information = n / num_items * (num_items * n / (size * b)).log()
            terms = torch.where(possible, log_probability.exp() * information, 0.0)
            total += times * float((terms.sum(dim=1) * times_b).sum())
    return total
