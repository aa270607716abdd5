"""Hard-aware cascade miner."""

import math

from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner


class HDCMiner(Miner):
    """The hardest positive pairs and the hardest negative pairs of the whole batch.

        the ceil(f n) least similar of n positive pairs, the ceil(f n) most similar of n negative pairs

    Gives (a1, p, a2, n). The paper's cascade filters like this at several depths of a network; this is one such filter.

    Args:
        filter_percentage: f, a fraction in (0, 1].

    Paper: Yuan et al. 2017, "Hard-Aware Deeply Cascaded Embedding", arXiv:1611.05720.
    """

    def __init__(self, filter_percentage: float = 0.5) -> None:
        super().__init__()
        if not 0 < filter_percentage <= 1:
            raise ValueError(f"filter_percentage={filter_percentage} is a fraction and must lie in (0, 1]")
        self.filter_percentage = filter_percentage

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        return *self._hardest(-matrix, positives), *self._hardest(matrix, negatives)

    def _hardest(self, hardness: Matrix, pairs: Mask) -> tuple[Tensor, Tensor]:
        rows, columns = pairs.nonzero(as_tuple=True)
        count = math.ceil(self.filter_percentage * len(rows))
        hardest = hardness[rows, columns].topk(count).indices
        return rows[hardest], columns[hardest]
