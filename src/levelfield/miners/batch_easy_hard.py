"""Easy positive miner."""

from typing import Literal

import torch
from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner, distances


class BatchEasyHardMiner(Miner):
    """For each anchor its nearest positive, and the nearest negative that is farther than it.

        p = argmin d_ap,  n = argmin of d_an over d_an > d_ap

    d is the distance of unit vectors. A class may thus form several clusters. Anchors without either are left out.
    Gives (a, p, a, n).

    Args:
        pos_strategy: "easy" for the nearest positive, "hard" for the farthest.
        neg_strategy: "semihard" for negatives as above, "hard" for the nearest of all, "easy" for the farthest.

    Paper: Xuan et al. 2020, "Improved Embeddings with Easy Positive Triplet Mining", arXiv:1904.04370.
    """

    matrix = staticmethod(distances)

    def __init__(
        self,
        pos_strategy: Literal["easy", "hard"] = "easy",
        neg_strategy: Literal["semihard", "hard", "easy"] = "semihard",
    ) -> None:
        super().__init__()
        if pos_strategy not in ("easy", "hard"):
            raise ValueError(f"pos_strategy='{pos_strategy}' must be 'easy' or 'hard'")
        if neg_strategy not in ("semihard", "hard", "easy"):
            raise ValueError(f"neg_strategy='{neg_strategy}' must be 'semihard', 'hard' or 'easy'")
        self.pos_strategy, self.neg_strategy = pos_strategy, neg_strategy

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        p = _nearest(matrix, positives) if self.pos_strategy == "easy" else _nearest(-matrix, positives)
        if self.neg_strategy == "semihard":
            negatives = negatives & (matrix > matrix.gather(1, p[:, None]))
        n = _nearest(-matrix, negatives) if self.neg_strategy == "easy" else _nearest(matrix, negatives)
        (a,) = (positives.any(1) & negatives.any(1)).nonzero(as_tuple=True)
        return a, p[a], a, n[a]


def _nearest(matrix: Matrix, among: Mask) -> Tensor:
    return matrix.masked_fill(~among, torch.inf).argmin(1)
