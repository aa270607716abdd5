"""Triplet margin loss."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import relu, softplus

from levelfield.losses.base import Choice, IndicesTuple, Labels, PairMasks, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, nonzero_mean, pair_weights
from levelfield.losses.triplets import mean_of_active, padded_positives, positive_pairs, random_triplets


class TripletMarginLoss(PairLoss):
    """Each positive must be nearer to the anchor than each negative, by a margin.

        L = NZ_{(i,p,n)} [d_ip^q - d_in^q + m]+

    d is the distance of unit vectors, in [0, 2]. NZ is the mean over the terms above 0. The sum over all triplets is
    exact.

    Args:
        margin: m.
        swap: d_in is the smaller of the negative's distances to the anchor and to the positive.
        smooth_loss: log(1 + exp(.)) instead of [.]+.
        triplets_per_anchor: "all"; a number of random ones (torch's global generator); or "semihard", FaceNet's rule.
            It takes, for each positive pair, the nearest negative that is farther than the positive, else the farthest
            negative. The loss is then the plain mean over positive pairs, zeros included. A miner overrides it.
        power: q, 1 as in the Reality Check (Eq 2) or 2 as in FaceNet and Vasilev & D'yakonov (Eq 2).
        normalize: False uses the embeddings without normalisation, as Fehervari et al. do.

    Cost: B^2 log B; `swap` and `smooth_loss` pairs x B. When: classes of different spread; all triplets, or FaceNet's
    rule with "semihard".
    Papers: Weinberger & Saul 2009, https://jmlr.org/papers/v10/weinberger09a.html; Schroff et al. 2015,
    arXiv:1503.03832; this form Musgrave et al. 2020, arXiv:2003.08505 (Eq 2).
    """

    # The start is near the Reality Check's optima.
    search_space = {"margin": {"start": 0.1, "low": -0.2, "high": 2.0, "scale": "linear"}}

    def __init__(
        self,
        margin: float = 0.05,
        swap: bool = False,
        smooth_loss: bool = False,
        triplets_per_anchor: int | Literal["all", "semihard"] = "all",
        power: int = 1,
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize)
        if power not in (1, 2):
            raise ValueError(f"power={power} must be 1 or 2")
        if isinstance(triplets_per_anchor, str) and triplets_per_anchor not in ("all", "semihard"):
            raise ValueError(f"triplets_per_anchor={triplets_per_anchor!r} must be 'all', 'semihard' or a number")
        if triplets_per_anchor == "semihard" and swap:
            raise ValueError("swap=True has no meaning with triplets_per_anchor='semihard'")
        self.margin = margin
        self.swap = swap
        self.smooth_loss = smooth_loss
        self.triplets_per_anchor = triplets_per_anchor
        self.power = power

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        anchors, others = self.points(embeddings, ref_emb)
        dist_NM = self._distances(anchors, others)
        between_MM = None
        if self.swap:
            between_MM = dist_NM if ref_emb is None else self._distances(others, others)
        if indices_tuple is not None and len(indices_tuple) == 3:
            return self._listed(dist_NM, between_MM, indices_tuple)
        positives, negatives = pair_weights(labels, indices_tuple, ref_labels, dtype=embeddings.dtype)
        if indices_tuple is None and isinstance(self.triplets_per_anchor, int):
            chosen, counts = random_triplets(positives, negatives, self.triplets_per_anchor)
            return self._listed(dist_NM, between_MM, chosen, counts)
        if indices_tuple is None and self.triplets_per_anchor == "semihard":
            return self._semihard(dist_NM, positives, negatives)
        if between_MM is not None or self.smooth_loss:
            return self._every(dist_NM, between_MM, positives, negatives)
        once = indices_tuple is None or isinstance(indices_tuple, PairMasks)
        return mean_of_active(dist_NM, positives, negatives, self.margin, once)

    def _distances(self, anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
        dist = self.distances(anchors, others)
        return dist.square() if self.power == 2 else dist

    def _penalty(self, violation: Tensor) -> Tensor:
        return softplus(violation) if self.smooth_loss else relu(violation)

    def _every(self, dist: Pairs, between: Pairs | None, positives: Pairs, negatives: Pairs) -> Scalar:
        a, p = positive_pairs(positives)
        far_KM = dist[a] if between is None else torch.minimum(dist[a], between[p])
        return nonzero_mean(self._penalty(dist[a, p][:, None] - far_KM + self.margin), negatives[a])

    def _listed(
        self, dist: Pairs, between: Pairs | None, triplets: IndicesTuple, counts: Float[Tensor, " T"] | None = None
    ) -> Scalar:
        a, p, n = triplets
        far = dist[a, n] if between is None else torch.minimum(dist[a, n], between[p, n])
        penalty = self._penalty(dist[a, p] - far + self.margin)
        return nonzero_mean(penalty, torch.ones_like(penalty) if counts is None else counts)

    def _semihard(self, dist: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        columns, present = padded_positives(positives, once=True)
        near = dist.gather(1, columns)
        count = negatives.sum(1, keepdim=True).long()
        ranked, order = dist.detach().masked_fill(negatives == 0, torch.inf).sort(dim=1, stable=True)
        farther = torch.searchsorted(ranked, near.detach(), right=True)
        rank = torch.minimum(farther, count - 1).clamp_min(0)  # none is farther: take the farthest
        far = dist.gather(1, order.gather(1, rank))
        weights = (present & (count > 0)).to(dist.dtype)
        return mean_over(self._penalty(near - far + self.margin), weights)
