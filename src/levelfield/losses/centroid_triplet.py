"""Centroid triplet loss."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import threshold

from levelfield.core.numerics import rounding_of, unit
from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import nonzero_mean, safe_sqrt, squared_distances


class CentroidTripletLoss(MetricLoss):
    """Each sample must be nearer to its class's centroid, without itself, than to other centroids.

        L = NZ_{(i, other class c in the batch)} [ D(u_i, c_{y_i} without i) - D(u_i, c_c) + m ]+

    u are unit vectors. A centroid is the mean of its class's u, made unit. D is the distance to the power q; NZ is the
    mean over the terms above 0. A class with one sample has no centroid without it: the sample is no anchor, but its
    centroid repels the others. With `ref_emb` a centroid is the mean of all references of its class. Takes no miner.
    With several processes, each computes the whole loss, because a centroid needs many rows.

    Args:
        margin: m.
        power: q, 1, or 2 as in Vasilev & D'yakonov.
        normalize_centroids: False keeps each centroid the plain mean, as Vasilev & D'yakonov do.

    Cost: B C. When: noisy samples: a mean is steadier than a sample.
    Paper: Wieczorek et al. 2021, "On the Unreasonable Effectiveness of Centroids in Image Retrieval", arXiv:2104.13643.

    Differs: the authors compare raw features with plain means. They use only the nearest other centroid, and a margin
    of 0.5.

    Not for `torch.compile(fullgraph=True)`: the number of classes in the batch sets the shapes.
    """

    # The default margin leaves few active terms in a small batch.
    search_space = {"margin": {"start": 0.2, "low": 0.0, "high": 1.0, "scale": "linear"}}

    def __init__(self, margin: float = 0.05, power: int = 1, normalize_centroids: bool = True) -> None:
        super().__init__()
        if power not in (1, 2):
            raise ValueError(f"power={power} must be 1 or 2")
        self.margin = margin
        self.power = power
        self.normalize_centroids = normalize_centroids

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if indices_tuple is not None:
            raise ValueError("CentroidTripletLoss compares samples with centroids and takes no miner")
        anchors = unit(embeddings)
        members = anchors if ref_emb is None else unit(ref_emb)
        present_C, class_of = (labels if ref_labels is None else ref_labels).unique(return_inverse=True)
        sums_CD = anchors.new_zeros(len(present_C), anchors.shape[1]).index_add(0, class_of, members)
        sizes_C = torch.bincount(class_of, minlength=len(present_C))
        own_NC = labels[:, None] == present_C[None, :]
        own_N = own_NC.int().argmax(1)
        own_sum, own_size = sums_CD[own_N], sizes_C[own_N]
        if ref_emb is None:
            own_sum, own_size = own_sum - anchors, own_size - 1
        to_own = self._power((anchors - self._centroid(own_sum, own_size)).square().sum(1, keepdim=True))
        to_others = self._power(squared_distances(anchors, self._centroid(sums_CD, sizes_C)))
        has_own = own_NC.any(1) & (own_size > 0)
        weights = (~own_NC & has_own[:, None]).to(anchors.dtype)
        return nonzero_mean((to_own - to_others + self.margin).clamp_min(0), weights)

    def _centroid(self, sums: Float[Tensor, "C D"], sizes: Int[Tensor, " C"]) -> Float[Tensor, "C D"]:
        return unit(sums) if self.normalize_centroids else sums / sizes.clamp_min(1)[:, None]

    def _power(self, squares: Tensor) -> Tensor:
        floor = rounding_of(squares)
        return threshold(squares, floor, 0.0) if self.power == 2 else safe_sqrt(squares, floor)
