"""FastAP loss."""

import torch
from jaxtyping import Float
from torch import Tensor, no_grad
from torch.nn.functional import pad

from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, sample_weights
from levelfield.losses.pairs import mean_over, pair_weights, squared_distances
from levelfield.numerics import unit


class FastAPLoss(MetricLoss):
    """One minus the average precision of each anchor's ranking, from soft histograms of its distances.

        L = mean_{i with P(i)} 1 - (1/#P(i)) sum_{k=0..B} h+_k H+_k / H_k
        h_k = sum_j max(0, 1 - abs(z_ij - 4k/B) B/4)    z_ij = d_ij^2 in [0, 4]

    h+ counts positives, h everything except the anchor. Capitals are cumulative sums over the B + 1 nodes. d is the
    distance of unit vectors. With a miner, an anchor's weight is how often it is named, divided by the largest such
    count.

    Args:
        num_bins: B, the number of bins.

    Cost: B^2. When: to optimise the ranking itself; large batches.
    Paper: Cakir et al. 2019, "Deep Metric Learning to Rank",
    https://openaccess.thecvf.com/content_CVPR_2019/html/Cakir_Deep_Metric_Learning_to_Rank_CVPR_2019_paper.html.
    """

    def __init__(self, num_bins: int = 10) -> None:
        super().__init__()
        if num_bins < 1:
            raise ValueError(f"num_bins={num_bins} must be at least 1")
        self.num_bins = num_bins

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Float[Tensor, ""]:
        positives, negatives = pair_weights(labels, None, ref_labels, dtype=embeddings.dtype)
        anchors = unit(embeddings)
        others = anchors if ref_emb is None else unit(ref_emb)
        weights = sample_weights(embeddings, indices_tuple, anchors_only=ref_emb is not None)
        heights = squared_distances(anchors, others) * (self.num_bins / 4)
        positive_hist, negative_hist = self._histograms(heights, positives, negatives)
        hist = positive_hist + negative_hist
        below = hist.cumsum(1)
        count = positives.sum(1)
        precision = positive_hist * positive_hist.cumsum(1) / torch.where(below > 0, below, 1.0)
        losses = 1 - precision.sum(1) / count.clamp_min(1)
        return mean_over(losses * weights, (count > 0).to(losses.dtype))

    def _histograms(
        self, heights: Float[Tensor, "N M"], positives: Float[Tensor, "N M"], negatives: Float[Tensor, "N M"]
    ) -> tuple[Float[Tensor, "N B+1"], Float[Tensor, "N B+1"]]:
        """Histograms of positives and of negatives; each entry is split between the two nodes around it."""
        B = self.num_bins
        with no_grad():
            node = heights.floor().clamp_(0, B - 1).nan_to_num_(0)
            place = node.add(negatives, alpha=B).long()  # the negatives' bins follow the positives'
            counted = positives + negatives
            totals = heights.new_zeros(len(heights), 2 * B).scatter_add_(1, place, counted)
        upper = heights.new_zeros(len(heights), 2 * B).scatter_add(1, place, (heights - node) * counted)
        lower = totals - upper
        both = pad(lower.unflatten(1, (2, B)), (0, 1)) + pad(upper.unflatten(1, (2, B)), (1, 0))
        return both[:, 0], both[:, 1]
