"""Multi-similarity miner."""

import torch
from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner


class MultiSimilarityMiner(Miner):
    """Pairs that are hard compared with the anchor's other pairs.

        p with s_ip - epsilon < max_n s_in,  n with s_in + epsilon > min_p s_ip

    s is the cosine. An anchor without positives or without negatives keeps nothing. Gives (a1, p, a2, n).

    Args:
        epsilon: slack, in units of cosine.

    Paper: Wang et al. 2019, "Multi-Similarity Loss with General Pair Weighting", arXiv:1904.06627 (Eq 11, 12).
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        nearest_negative = matrix.masked_fill(~negatives, -torch.inf).amax(1, keepdim=True)
        farthest_positive = matrix.masked_fill(~positives, torch.inf).amin(1, keepdim=True)
        a1, p = (positives & (matrix - self.epsilon < nearest_negative)).nonzero(as_tuple=True)
        a2, n = (negatives & (matrix + self.epsilon > farthest_positive)).nonzero(as_tuple=True)
        return a1, p, a2, n
