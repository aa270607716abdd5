"""KoLeo regularizer."""

import torch
from jaxtyping import Float
from torch import Tensor, no_grad

from levelfield.core.numerics import inner_products, rounding_of, unit
from levelfield.regularizers.base import Regularizer


class KoLeo(Regularizer):
    """Pushes each sample away from its nearest neighbour of any class.

        R = -mean_i log( min_{j != i} norm(u_i - u_j) )

    The penalty follows Kozachenko and Leonenko's estimate of the entropy. u are unit vectors. Vectors that coincide
    except for rounding, such as repeats of a sample, count as that far apart (1.4e-3 in float32), without a gradient.
    So R is finite, and the gradient is at most 725 / N for each sample in float32.

    Args:
        weight: how much R counts, at least 0; 0.1 in DINOv2.

    Cost: B^2. When: embeddings crowd together; unseen classes overlap.
    Papers: Sablayrolles et al. 2019, "Spreading vectors for similarity search", arXiv:1806.03198; Oquab et al. 2023,
    "DINOv2: Learning Robust Visual Features without Supervision", arXiv:2304.07193.
    """

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        units = unit(points)
        with no_grad():
            nearest = inner_products(units, units).fill_diagonal_(-torch.inf).argmax(1)
        squares = (units - units[nearest]).square().sum(1)
        return -squares.clamp_min(rounding_of(units)).log().mean() / 2
