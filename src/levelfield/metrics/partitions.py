"""Agreement of two partitions of the same items: NMI, AMI and pairwise F1.

scikit-learn's AMI loops over all pairs of clusters, minutes at the size of Stanford Online Products; its expectation
depends on their sizes only, and few sizes differ.

Shapes: N items, A distinct cluster sizes of one partition, B of the other, C clusters.
"""

import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor


def partition_scores(
    clusters: Integer[Tensor, " items"], labels: Integer[Tensor, " items"], average: str = "arithmetic"
) -> dict[str, float]:
    """Compare clusters with labels.

    NMI = I / avg(H_1, H_2); AMI = (I - E[I]) / (avg(H_1, H_2) - E[I]), the expectation over permutations;
    F1 = 2 P R / (P + R) with P the share of same-cluster pairs that share a label and R the reverse. Where a ratio is
    0 / 0 it is 1 if the partitions are the same, otherwise 0, as in scikit-learn: one cluster of everything against
    several labels has NMI = AMI = 0 whatever the average.

    Args:
        clusters: (N,) integers.
        labels: (N,) integers.
        average: of the entropies, `arithmetic` or `geometric`, the literature's two.

    Returns:
        `nmi`, `ami` and `f1`.

    Raises:
        ValueError: different lengths, no items, or an unknown average.

    Source: Manning et al., Introduction to Information Retrieval, 2008, chapter 16.3 (NMI, pairwise F1); Vinh et al.,
    Information Theoretic Measures for Clusterings Comparison, JMLR 2010 (AMI, its expectation in equation 24a).
    """
    if clusters.shape != labels.shape or clusters.ndim != 1 or len(labels) == 0:
        raise ValueError(f"{tuple(clusters.shape)} clusters and {tuple(labels.shape)} labels, of (N,) each")
    if average not in ("arithmetic", "geometric"):
        raise ValueError(f"no such average {average!r}; known are arithmetic, geometric")
    _, clusters_N, clusters_C = clusters.cpu().unique(return_inverse=True, return_counts=True)
    _, labels_N, labels_C = labels.cpu().unique(return_inverse=True, return_counts=True)
    joint_C = (clusters_N * len(labels_C) + labels_N).unique(return_counts=True)[1]

    information = entropy(clusters_C) + entropy(labels_C) - entropy(joint_C)
    entropies = torch.stack([entropy(clusters_C), entropy(labels_C)])
    scale = float(entropies.mean() if average == "arithmetic" else entropies.prod().sqrt())
    expected = expected_information(clusters_C, labels_C)
    same_in_both, same_in_one = num_pairs(joint_C), num_pairs(clusters_C) + num_pairs(labels_C)
    undefined = float(len(clusters_C) == len(labels_C) == len(joint_C))
    return {
        "nmi": ratio(float(information), scale, undefined),
        "ami": ratio(float(information) - expected, scale - expected, undefined),
        "f1": ratio(2 * same_in_both, same_in_one, undefined),
    }


def ratio(part: float, whole: float, undefined: float) -> float:
    return part / whole if abs(whole) >= 1e-12 else undefined


def num_pairs(counts_C: Int64[Tensor, " clusters"]) -> int:
    return int((counts_C * (counts_C - 1) // 2).sum())


def entropy(counts_C: Int64[Tensor, " clusters"]) -> Float64[Tensor, ""]:
    """Of the cluster of a random item, in nats."""
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
