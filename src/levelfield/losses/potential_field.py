"""Potential field loss."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Labels, Points, Scalar, check_above_0
from levelfield.losses.classification import ClassificationLoss, ClassWeights, SampleWeights
from levelfield.losses.pairs import CACHED_VALUES, ROW_VALUES, Pairs

# Smaller distances count as this one. Rounding in float32 gives points that coincide a smaller distance.
NEAREST = 2e-3
# With a larger alpha, the field of two points that coincide overflows float32.
GREATEST_ALPHA = 10.0


class PotentialFieldLoss(ClassificationLoss):
    """Samples and proxies are charges: those of a class attract, others repel, less with distance.

        L = sum_{a != b} q_a q_b psi_ab
        psi_ab = -max(d_ab, delta)^-alpha for two of a class, min(d_ab, delta)^-alpha else
        d_ab = norm(u_a - u_b)

    a and b are the batch's samples and all proxies, u unit vectors. Within delta attraction is constant and has no
    gradient, so a class does not collapse. Beyond delta repulsion is constant. Charges q are 1. With a miner a sample's
    charge is how often `indices_tuple` names it, divided by the largest such count. A sample that is not named feels no
    field and makes none. Points nearer than 0.002 count as that far apart, without a gradient: two may coincide. L is
    the paper's total potential energy (its equations 1 to 6). As a sum it grows with the square of the number of
    points, which does not affect the steps of Adam.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        centers_per_class: M, proxies for each class; the paper has 15 for 100 classes (CUB, Cars) and 2 for 11,318
            (SOP).
        delta: Euclidean distance of unit vectors, above 0; the paper tried 0.1 to 0.3.
        alpha: how fast the field decays, in (0, 10]; the paper tried up to 6.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: (B + C M)^2, computed some rows at a time. When: noisy labels; classes of several clusters; not many classes.
    Paper: Bhatnagar & Ahuja 2025, "Potential Field Based Deep Metric Learning", arXiv:2405.18560.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 2,
        delta: float = 0.2,
        alpha: float = 4.0,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=centers_per_class, **class_weights)
        check_above_0(delta=delta, alpha=alpha)
        if alpha > GREATEST_ALPHA:
            raise ValueError(f"alpha={alpha} must be at most {GREATEST_ALPHA:g}")
        self.delta = delta
        self.alpha = alpha

    def class_loss(
        self, embeddings: Points, class_weights: ClassWeights, labels: Labels, sample_weights: SampleWeights
    ) -> Scalar:
        own = torch.arange(len(class_weights), device=labels.device) // self.centers_per_class
        points = torch.cat([unit(embeddings), unit(class_weights)])
        charges = torch.cat([sample_weights, sample_weights.new_ones(len(class_weights))])
        return _Energy.apply(points, torch.cat([labels, own]), charges, self.delta, self.alpha)


class _Energy(torch.autograd.Function):
    """The energy; `forward` also computes its derivative, which `backward` repeats under autograd for a second one."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, labels: Tensor, charges: Tensor, delta: float, alpha: float) -> Tensor:
        energy, slopes = energy_and_slopes(points, labels, charges, delta, alpha)
        ctx.save_for_backward(points, labels, charges, slopes)
        ctx.field = delta, alpha
        return energy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        points, labels, charges, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            _, slopes = energy_and_slopes(points, labels, charges, *ctx.field)
        return gradient * slopes, None, None, None, None


def energy_and_slopes(
    points: Float[Tensor, "n D"], labels: Int[Tensor, " n"], charges: Float[Tensor, " n"], delta: float, alpha: float
) -> tuple[Scalar, Float[Tensor, "n D"]]:
    """sum_{a != b} q_a q_b psi_ab of unit vectors and its derivative, in blocks of rows from the diagonal on."""
    n, near, level = len(points), NEAREST**2, delta**2
    size = max(1, (CACHED_VALUES if points.device.type == "cpu" else ROW_VALUES) // n)
    norms = points.square().sum(1)
    weighed = charges[:, None] * torch.cat([points, torch.ones_like(points[:, :1])], 1)
    energy = charges.square().sum() * delta**-alpha  # cancels the diagonal, which the blocks include
    slopes = torch.zeros_like(points)
    for first in range(0, n, size):
        last = min(first + size, n)
        squares = norms[first:last, None] + norms[first:] - 2 * inner_products(points[first:last], points[first:])
        same = labels[first:last, None] == labels[first:]
        # Clamped where the field is constant.
        held = torch.where(same, squares.clamp_min(level), squares.clamp(min(near, level), level))
        psi = held.pow(-alpha / 2)
        psi = torch.where(same, -psi, psi)
        of_squares = torch.where(squares == held, psi / held, 0) * (-alpha / 2)
        orders = charges[first:].clone()
        orders[last - first :] *= 2  # a pair with a later block counts for both orders
        energy = energy + (charges[first:last] * inner_products(psi, orders[None]).squeeze(1)).sum()
        slopes[first:last] += _away(points[first:last], of_squares, weighed[first:])
        if last < n:
            slopes[last:] += _away(points[last:], of_squares[:, last - first :].mT, weighed[first:last])
    return energy, 4 * charges[:, None] * slopes


def _away(points: Points, factors: Pairs, weighed: Float[Tensor, "M D+1"]) -> Points:
    """sum_m factors_nm q_m (x_n - x_m), given q_m x_m and q_m."""
    sums = inner_products(factors, weighed.mT)
    return sums[:, -1:] * points - sums[:, :-1]
