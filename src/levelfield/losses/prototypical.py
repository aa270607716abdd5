"""Prototypical loss."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from levelfield.core.numerics import unit
from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import safe_sqrt, squared_distances


class PrototypicalLoss(MetricLoss):
    """Classifies each query by its distance to the mean of each class's support.

        L = mean_q CE( (-norm(x_q - mu_k)^2)_k, y_q )    mu_k = mean of the support of class k

    The first samples of a class in the batch are its support, the rest its queries. A class with one sample is left
    out. With `ref_emb` the references are the support, and all embeddings of their classes are queries. Nothing is
    random: processes with the same batch have the same episode. Takes no miner.

    Args:
        num_support: support samples of a class, at most all but one; None is half of them, rounded down.
        squared: False takes the distance, as printed in Fehervari et al. (Eq 13), instead of its square.
        normalize: make the embeddings unit vectors first.

    Cost: B C. When: few-shot episodes; half of the batch is support.
    Paper: Snell et al. 2017, "Prototypical Networks for Few-shot Learning", arXiv:1703.05175.

    Not for `torch.compile(fullgraph=True)`: the numbers of classes and queries set the shapes.
    """

    def __init__(self, num_support: int | None = None, squared: bool = True, normalize: bool = False) -> None:
        super().__init__()
        if num_support is not None and num_support < 1:
            raise ValueError(f"num_support={num_support} must be at least 1")
        self.num_support = num_support
        self.squared = squared
        self.normalize = normalize

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if indices_tuple is not None:
            raise ValueError("PrototypicalLoss compares queries with prototypes and takes no miner")
        points = unit(embeddings) if self.normalize else embeddings
        if ref_emb is None or ref_labels is None:
            in_support, in_query = self._split(labels)
            support, support_labels = points[in_support], labels[in_support]
        else:
            support, support_labels = unit(ref_emb) if self.normalize else ref_emb, ref_labels
            in_query = torch.isin(labels, ref_labels)
        if not in_query.any():
            return embeddings.new_zeros(())
        classes, class_of = support_labels.unique(return_inverse=True)
        sums = support.new_zeros(len(classes), support.shape[1]).index_add(0, class_of, support)
        prototypes = sums / torch.bincount(class_of)[:, None]
        squares = squared_distances(points[in_query], prototypes)
        logits = -(squares if self.squared else safe_sqrt(squares))
        return cross_entropy(logits, torch.searchsorted(classes, labels[in_query]))

    def _split(self, labels: Int[Tensor, " N"]) -> tuple[Tensor, Tensor]:
        """Which samples are support and which are queries."""
        _, class_of, sizes = labels.unique(return_inverse=True, return_counts=True)
        order = class_of.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(labels), device=labels.device) - (sizes.cumsum(0) - sizes)[class_of[order]]
        wanted = sizes // 2 if self.num_support is None else (sizes - 1).clamp_max(self.num_support)
        in_support = rank < wanted[class_of]
        return in_support, ~in_support & (sizes[class_of] > 1)
