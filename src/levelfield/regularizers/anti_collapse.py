"""Anti-collapse regularizer: the coding rate."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.numerics import inner_products, unit
from levelfield.regularizers.base import Regularizer

Coded = Literal["embeddings", "class_weights"]


class AntiCollapse(Regularizer):
    """Makes samples or class weights fill many dimensions: minus their code length in nats.

        R = -1/2 log det( I + D / (N eps2) U^T U )

    U are the N unit vectors of D numbers, in rows. The code reproduces them up to an error.

    Args:
        weight: how much R counts, at least 0; R grows with D.
        eps2: the mean squared error of the code, above 0; 0.5 is Yu et al.'s.
        of: `embeddings`, for losses of pairs, or the `class_weights` of a loss that has them; N is their number.

    Cost: B D min(B, D). When: embeddings use few of their dimensions (`val/effective_rank`).
    Papers: Yu et al. 2020, "Learning Diverse and Discriminative Representations via the Principle of Maximal Coding
    Rate Reduction", arXiv:2006.08558; Jiang et al. 2024, "Anti-Collapse Loss for Deep Metric Learning Based on Coding
    Rate Metric", arXiv:2407.03106.

    Differs: this is Yu et al.'s coding rate. Jiang et al. have exp(-R) of all proxies, with N / (D eps) instead of D /
    (N eps2).
    """

    def __init__(self, weight: float = 1.0, eps2: float = 0.5, of: Coded = "embeddings") -> None:
        super().__init__(weight)
        if eps2 <= 0:
            raise ValueError(f"eps2={eps2} must be above 0")
        if of not in get_args(Coded):
            raise ValueError(f"of={of!r} must be one of {', '.join(get_args(Coded))}")
        self.eps2 = eps2
        self.of = of

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        units, (N, D) = unit(points), points.shape
        products = inner_products(units, units) if N < D else inner_products(units.mT, units.mT)
        coded = torch.eye(len(products), dtype=units.dtype, device=units.device) + D / (N * self.eps2) * products
        return -_LogDeterminant.apply(coded)[0] / 2


class _LogDeterminant(torch.autograd.Function):
    """(log det A, A^-1) of a positive definite matrix. The derivatives use the outputs, so they can be differentiated
    again. Their products are true float32, unlike those of torch's decomposition."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor = torch.linalg.cholesky_ex(matrix).L
        inverse = torch.cholesky_inverse(factor)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inverse)
        return 2 * factor.diagonal().log().sum(), inverse

    @staticmethod
    def backward(ctx: Any, of_logarithm: Tensor | None, of_inverse: Tensor | None) -> Tensor | None:
        (inverse,) = ctx.saved_tensors
        gradient = None if of_logarithm is None else of_logarithm * inverse
        if of_inverse is not None:
            through = inner_products(inner_products(inverse, of_inverse.mT), inverse)
            gradient = -through if gradient is None else gradient - through
        return gradient
