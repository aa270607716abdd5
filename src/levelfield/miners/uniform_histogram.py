"""Uniform histogram miner."""

import torch
from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner, distances


class UniformHistogramMiner(Miner):
    """The same number of random pairs from each distance bin, for positives and for negatives.

        bins of equal width from the least distance of such a pair to the largest

    d is the distance of unit vectors. Draws with replacement, from torch's global generator. Gives (a1, p, a2, n).

    Args:
        num_bins: bins of the positive pairs, and of the negative ones.
        pos_per_bin: positive pairs from each bin that has any.
        neg_per_bin: negative pairs from each bin that has any.

    Paper: Musgrave et al. 2020, "PyTorch Metric Learning", arXiv:2008.09164, the library that has it.
    """

    matrix = staticmethod(distances)

    def __init__(self, num_bins: int = 100, pos_per_bin: int = 10, neg_per_bin: int = 10) -> None:
        super().__init__()
        for name, value in (("num_bins", num_bins), ("pos_per_bin", pos_per_bin), ("neg_per_bin", neg_per_bin)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.num_bins, self.pos_per_bin, self.neg_per_bin = num_bins, pos_per_bin, neg_per_bin

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        return *self._drawn(matrix, positives, self.pos_per_bin), *self._drawn(matrix, negatives, self.neg_per_bin)

    def _drawn(self, matrix: Matrix, pairs: Mask, count: int) -> tuple[Tensor, Tensor]:
        rows, columns = (pairs & ~matrix.isnan()).nonzero(as_tuple=True)
        if len(rows) == 0:
            return rows, columns
        found = matrix[rows, columns]
        least, largest = found.aminmax()
        width = (largest - least).clamp_min(torch.finfo(found.dtype).tiny) / self.num_bins
        bins, order = ((found - least) / width).long().clamp(max=self.num_bins - 1).sort(stable=True)
        sizes = bins.unique_consecutive(return_counts=True)[1][:, None]
        starts = sizes.cumsum(0) - sizes
        drawn = torch.rand((len(sizes), count), device=sizes.device, dtype=torch.float64)
        chosen = order[(starts + (drawn * sizes).long()).flatten()]
        return rows[chosen], columns[chosen]
