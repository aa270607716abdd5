"""FastAP loss."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import threshold

from levelfield.core.numerics import unit
from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, Scalar, sample_weights
from levelfield.losses.pairs import CACHED_VALUES, ROW_VALUES, mean_over, pair_weights, squared_distances


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

    # The start is near the Reality Check's optima.
    search_space = {"num_bins": {"start": 16, "low": 2.0, "high": 250.0, "scale": "log", "integer": True}}

    def __init__(self, num_bins: int = 10) -> None:
        super().__init__()
        if num_bins < 1:
            raise ValueError(f"num_bins={num_bins} must be at least 1")
        self.num_bins = num_bins

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        positives, negatives = pair_weights(labels, None, ref_labels, dtype=embeddings.dtype)
        anchors = unit(embeddings)
        others = anchors if ref_emb is None else unit(ref_emb)
        weights = sample_weights(embeddings, indices_tuple, anchors_only=ref_emb is not None)
        heights = squared_distances(anchors, others) * (self.num_bins / 4)
        within, within_all = _CumulativeHistograms.apply(heights, positives, negatives, self.num_bins, ref_emb is None)
        count = positives.sum(1)
        precision = within.diff(dim=1, prepend=torch.zeros_like(within[:, :1])) * within
        losses = 1 - (precision / threshold(within_all, 0.0, 1.0)).sum(1) / count.clamp_min(1)
        return mean_over(losses * weights, count.sign())


class _CumulativeHistograms(torch.autograd.Function):
    """H+ and H: an entry counts max(0, min(1, k + 1 - z B/4)) at node k < B, and 1 at node B.

    A sum for each node: a sum by the entries' bins would be a sort on a GPU under determinism.
    """

    @staticmethod
    def forward(
        ctx: Any, heights: Tensor, positives: Tensor, negatives: Tensor, num_bins: int, itself: bool
    ) -> tuple[Float[Tensor, "N B+1"], Float[Tensor, "N B+1"]]:
        nodes = torch.arange(1, num_bins + 1, dtype=heights.dtype, device=heights.device)
        within, within_all = heights.new_empty(2, len(heights), num_bins + 1)
        for rows in _blocks(heights, num_bins):
            counted = (nodes[:, None] - heights[rows, None]).clamp_(0, 1)
            within_all[rows, :-1] = counted.sum(2)
            within[rows, :-1] = counted.mul_(positives[rows, None]).sum(2)
        if itself:  # an anchor is not among its others
            within_all[:, :-1] -= (nodes - heights.diagonal()[:, None]).clamp_(0, 1)
        within[:, -1] = positives.sum(1)
        within_all[:, -1] = within[:, -1] + negatives.sum(1)
        ctx.save_for_backward(heights, negatives)
        ctx.num_bins, ctx.itself = num_bins, itself
        return within, within_all

    @staticmethod
    def backward(ctx: Any, of_positives: Tensor, of_all: Tensor) -> tuple[Tensor, None, None, None, None]:
        heights, negatives = ctx.saved_tensors
        slopes = -torch.cat([of_positives + of_all, of_all], 1)

        def of(rows: slice) -> Tensor:
            node = heights[rows].detach().floor().clamp_(0, ctx.num_bins - 1).nan_to_num_(0)
            place = node.add_(negatives[rows], alpha=ctx.num_bins + 1).long()  # the negatives' follow the positives'
            return slopes[rows].gather(1, place)

        of_heights = torch.cat([of(rows) for rows in _blocks(heights, 1)])
        return of_heights.fill_diagonal_(0) if ctx.itself else of_heights, None, None, None, None


def _blocks(heights: Float[Tensor, "N M"], values: int) -> list[slice]:
    """Rows to compute at a time, with so many values in memory for each entry."""
    held = CACHED_VALUES if heights.device.type == "cpu" else ROW_VALUES
    size = max(1, held // (values * heights.shape[1]))
    return [slice(first, first + size) for first in range(0, len(heights), size)]
