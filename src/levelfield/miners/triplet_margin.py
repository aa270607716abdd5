"""Triplet margin miner."""

from typing import Literal

from torch import Tensor

from levelfield.miners.base import Mask, Matrix, Miner, distances


class TripletMarginMiner(Miner):
    """Triplets chosen by how much farther the negative is than the positive, t = d_an - d_ap.

        "all" t <= margin    "hard" t <= 0    "semihard" 0 < t <= margin    "easy" t > margin

    d is the distance of unit vectors. Gives all such (a, p, n): time and memory grow with positive pairs x N. FaceNet's
    rule, one semi-hard negative for each positive pair, is
    `TripletMarginLoss(triplets_per_anchor="semihard")`.

    Args:
        margin: in units of distance.
        type_of_triplets: which of the four.

    Paper: Schroff et al. 2015, "FaceNet: A Unified Embedding for Face Recognition and Clustering", arXiv:1503.03832.
    """

    matrix = staticmethod(distances)

    def __init__(
        self, margin: float = 0.2, type_of_triplets: Literal["all", "hard", "semihard", "easy"] = "all"
    ) -> None:
        super().__init__()
        if type_of_triplets not in ("all", "hard", "semihard", "easy"):
            raise ValueError(f"type_of_triplets='{type_of_triplets}' must be 'all', 'hard', 'semihard' or 'easy'")
        self.margin = margin
        self.type_of_triplets = type_of_triplets

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        a, p = positives.nonzero(as_tuple=True)
        beyond = matrix[a] - matrix[a, p][:, None]
        if self.type_of_triplets == "easy":
            kept = beyond > self.margin
        else:
            kept = beyond <= self.margin
            if self.type_of_triplets == "hard":
                kept &= beyond <= 0
            elif self.type_of_triplets == "semihard":
                kept &= beyond > 0
        pair, n = (kept & negatives[a]).nonzero(as_tuple=True)
        return a[pair], p[pair], n
