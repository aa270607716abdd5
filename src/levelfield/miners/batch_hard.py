"""Batch hard miner."""

import torch
from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner, distances


class BatchHardMiner(Miner):
    """For each anchor its farthest positive and its nearest negative.

    Anchors without either are left out. Gives (a, p, n).

    Paper: Hermans et al. 2017, "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737.
    """

    matrix = staticmethod(distances)

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        farthest = matrix.masked_fill(~positives, -torch.inf).argmax(1)
        nearest = matrix.masked_fill(~negatives, torch.inf).argmin(1)
        (a,) = (positives.any(1) & negatives.any(1)).nonzero(as_tuple=True)
        return a, farthest[a], nearest[a]
