"""Uniformity regularizer."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.numerics import inner_products, unit
from levelfield.regularizers.base import Regularizer


class Uniformity(Regularizer):
    """Spreads samples evenly over the sphere: the logarithm of the pairs' mean Gaussian potential.

        R = log mean_{i != j} e^(-t norm(u_i - u_j)^2)

    u are unit vectors.

    Args:
        weight: how much R counts, at least 0.
        t: above 0; with a larger value nearer pairs count more.

    Cost: B^2. When: the whole batch should spread, not only the nearest pairs; smoother than KoLeo.
    Paper: Wang & Isola 2020, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere", arXiv:2005.10242.
    """

    def __init__(self, weight: float = 1.0, t: float = 2.0) -> None:
        super().__init__(weight)
        if t <= 0:
            raise ValueError(f"t={t} must be above 0")
        self.t = t

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        units, N = unit(points), len(points)
        itself = torch.eye(N, dtype=torch.bool, device=points.device)
        exponents = (2 * self.t * (inner_products(units, units) - 1)).masked_fill(itself, -torch.inf)
        return exponents.flatten().logsumexp(0) - math.log(N * (N - 1))
