"""Angular miner."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.miners.base import Mask, Miner, distances


class AngularMiner(Miner):
    """Triplets whose negative sees the positive pair under more than an angle.

        |u_a - u_p| / (2 |u_n - u_c|) > tan(angle),  u_c = (u_a + u_p) / 2

    u are unit vectors. Gives all such (a, p, n): time and memory grow with positive pairs x N.

    Args:
        angle: in degrees, in (0, 90).

    Paper: Wang et al. 2017, "Deep Metric Learning with Angular Loss", arXiv:1708.01682.
    """

    def __init__(self, angle: float = 20.0) -> None:
        super().__init__()
        if not 0 < angle < 90:
            raise ValueError(f"angle={angle} is in degrees and must lie in (0, 90)")
        self.angle = angle

    def matrix(self, anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "rows M"]:
        """Squared distances; the last M rows are those between `others`."""
        rows = anchors if others is anchors else torch.cat([anchors, others])
        return distances(rows, others).square()

    def mine(self, matrix: Float[Tensor, "rows M"], positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        among = matrix[-positives.shape[1] :]
        a, p = positives.nonzero(as_tuple=True)
        across = matrix[a, p][:, None]
        # The median of the triangle, from its sides.
        to_centre = (matrix[a] + among[p]) / 2 - across / 4
        kept = across > 4 * math.tan(math.radians(self.angle)) ** 2 * to_centre
        pair, n = (kept & negatives[a]).nonzero(as_tuple=True)
        return a[pair], p[pair], n
