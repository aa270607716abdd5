"""Distance weighted miner."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner, distances


class DistanceWeightedMiner(Miner):
    """For each positive pair one random negative, so that distances are drawn evenly.

        P(n) ~ 1/q(d_an),  q(d) = d^(D-2) (1 - d^2/4)^((D-3)/2)

    q is the density of the distance of random points on the unit sphere. A d below `cutoff` counts as `cutoff`.
    Only negatives nearer than `nonzero_loss_cutoff` are drawn. Pairs whose anchor has none are left out. Draws from
    torch's global generator. Gives (a, p, n).

    Args:
        cutoff: smallest distance that counts, which bounds the weights.
        nonzero_loss_cutoff: negatives at this distance or beyond are not drawn.

    Paper: Wu et al. 2017, "Sampling Matters in Deep Embedding Learning", arXiv:1706.07567 (section 4).
    """

    def __init__(self, cutoff: float = 0.5, nonzero_loss_cutoff: float = 1.4) -> None:
        super().__init__()
        if not 0 < cutoff < 2:
            raise ValueError(f"cutoff={cutoff} is a distance of unit vectors and must lie in (0, 2)")
        self.cutoff = cutoff
        self.nonzero_loss_cutoff = nonzero_loss_cutoff

    def matrix(self, anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Matrix:
        """log 1/q(d), and minus infinity where d is too large to be drawn."""
        D = anchors.shape[1]
        dist = distances(anchors, others)
        clamped = dist.clamp_min(self.cutoff)
        room = (1 - clamped.square() / 4).clamp_min(1e-8)
        log_inverse = (2 - D) * clamped.log() - (D - 3) / 2 * room.log()
        return log_inverse.masked_fill(dist >= self.nonzero_loss_cutoff, -torch.inf)

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        log_weights = matrix.masked_fill(~negatives | matrix.isnan(), -torch.inf)
        drawable = log_weights.amax(1) > -torch.inf
        a, p = (positives & drawable[:, None]).nonzero(as_tuple=True)
        if len(a) == 0:
            return a, p, p
        if a.device.type == "cpu":
            return a, p, torch.multinomial(log_weights[a].softmax(1), 1).squeeze(1)
        return a, p, draw(log_weights[a])


def draw(log_weights: Float[Tensor, "K M"]) -> Int[Tensor, " K"]:
    """Draw a column of each row by its weight, as the first of exponential times; `torch.multinomial` synchronises."""
    return (log_weights - torch.empty_like(log_weights).exponential_().log()).argmax(1)
