"""What the formulas in `levelfield.metrics.definitions` take.

Shapes: Q queries, P ranks (the most items that match a query), N items, A distinct cluster sizes of one
partition, B of the other, C clusters, T thresholds.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """Ranks of the items that share a label with a query; m(i) is the rank of the i-th, R their number.

    Attributes:
        ranks_QP: ascending ranks (1 = nearest); entries that are not `found_QP` are ignored.
        found_QP: which ranks hold a value. An item beyond the ranking's end is not found.
        num_relevant_Q: R, at least 1.
        gains_QP: how many labels the query shares with each item, 0 beyond R; None without label sets: 1 each.
    """

    ranks_QP: Float64[Tensor, "queries ranks"]
    found_QP: Bool[Tensor, "queries ranks"]
    num_relevant_Q: Float64[Tensor, " queries"]
    gains_QP: Float64[Tensor, "queries ranks"] | None = None

    @cached_property
    def precision_QP(self) -> Float64[Tensor, "queries ranks"]:
        """i/m(i), 0 where nothing was found."""
        order_P = torch.arange(1, self.ranks_QP.shape[1] + 1, device=self.ranks_QP.device, dtype=torch.float64)
        return torch.where(self.found_QP, order_P / self.ranks_QP, 0.0)

    @cached_property
    def within_r_QP(self) -> Bool[Tensor, "queries ranks"]:
        """m(i) <= R."""
        return self.found_QP & (self.ranks_QP <= self.num_relevant_Q[:, None])

    @cached_property
    def first_Q(self) -> Float64[Tensor, " queries"]:
        """m(1), infinite where nothing was found."""
        return torch.where(self.found_QP[:, 0], self.ranks_QP[:, 0], torch.inf)

    def ndcg_at(self, n: int) -> Float64[Tensor, " queries"]:
        """Gain of the n nearest, each divided by log2(1 + its rank), over that of the order with the largest gains."""
        order_P = torch.arange(1, self.ranks_QP.shape[1] + 1, device=self.ranks_QP.device, dtype=torch.float64)
        gains_QP = self.gains_QP
        if gains_QP is None:
            gains_QP = (order_P <= self.num_relevant_Q[:, None]).double()
        best_QP = gains_QP.sort(dim=1, descending=True).values / (1 + order_P).log2()
        reached_QP = torch.where(self.found_QP & (self.ranks_QP <= n), gains_QP / (1 + self.ranks_QP).log2(), 0.0)
        return reached_QP.sum(1) / best_QP[:, :n].sum(1)


@dataclass(frozen=True)
class Partitions:
    """Two partitions of the same items.

    Attributes:
        clusters_N: cluster of each item.
        labels_N: class of each item.
    """

    clusters_N: Int64[np.ndarray, " items"]
    labels_N: Int64[np.ndarray, " items"]

    def normalized_information(self, average: str) -> float:
        """I over the `arithmetic` or `geometric` mean of H_1 and H_2; 0 / 0 is 1 for equal partitions, otherwise 0."""
        from sklearn.metrics import normalized_mutual_info_score  # takes a second

        return float(normalized_mutual_info_score(self.labels_N, self.clusters_N, average_method=average))

    @cached_property
    def information(self) -> tuple[float, float]:
        """Mutual information I and the mean entropy (H_1 + H_2) / 2, in nats: H is the information of itself."""
        from sklearn.metrics import mutual_info_score

        labels_N, clusters_N = self.labels_N, self.clusters_N
        entropies = [mutual_info_score(each_N, each_N) for each_N in (labels_N, clusters_N)]
        return float(mutual_info_score(labels_N, clusters_N)), float(sum(entropies) / 2)

    @cached_property
    def pair_counts(self) -> Int64[np.ndarray, "2 2"]:
        """Ordered pairs of items that share a class (second row) and a cluster (second column)."""
        from sklearn.metrics.cluster import pair_confusion_matrix

        return np.asarray(pair_confusion_matrix(self.labels_N, self.clusters_N))

    @cached_property
    def expected_information(self) -> float:
        """E[I] over permutations, in nats.

        Two clusters of sizes a and b share n items with hypergeometric probability, and then add n/N log(N n / (a b)).
        scikit-learn loops over all pairs of clusters, which takes 45 s for Stanford Online Products. There are few
        different sizes.
        """
        from scipy.stats import hypergeom  # takes a second

        num_items, total = len(self.labels_N), 0.0
        (sizes_A, times_A), (sizes_B, times_B) = (
            np.unique(np.unique(each_N, return_counts=True)[1], return_counts=True)
            for each_N in (self.clusters_N, self.labels_N)
        )
        for size, times in zip(sizes_A, times_A, strict=True):
            n = np.arange(1, min(size, sizes_B.max()) + 1)[:, None]
            information = n / num_items * np.log(num_items * n / (size * sizes_B))
            total += float(times * ((hypergeom.pmf(n, num_items, size, sizes_B) * information).sum(0) @ times_B))
        return total


@dataclass(frozen=True)
class Roc:
    """Share of accepted pairs, from a threshold above all similarities to one below all.

    Attributes:
        far_T: of the pairs of two classes, ascending from 0 to 1.
        tar_T: of the pairs of one class.
    """

    far_T: Float64[np.ndarray, " thresholds"]
    tar_T: Float64[np.ndarray, " thresholds"]

    @classmethod
    def of(cls, same_T: np.ndarray, other_T: np.ndarray) -> "Roc":
        """From the counts of pairs by falling similarity; pairs that tie are accepted together."""
        far_T, tar_T = (np.concatenate([[0.0], counts.cumsum() / counts.sum()]) for counts in (other_T, same_T))
        return cls(far_T, tar_T)

    def last_accepted(self, far: float) -> int:
        """The last threshold whose FAR is at most this."""
        return int(np.searchsorted(self.far_T, far, side="right")) - 1
