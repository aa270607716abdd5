"""Unit vectors at any scale, points of a Poincare ball, and products in true float32.

Shapes: N and M points, D dimensions; a star stands for any leading dimensions.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import threshold

# Where torch stores the precision of float32 products, with the setting that each inherits from.
_backends: Any = torch.backends
PRODUCTS = [(_backends.cuda.matmul, _backends.cudnn), (_backends.mkldnn.matmul, _backends.mkldnn)]

# The Poincare ball (Ermolov et al. 2022): c, and the norm that vectors are clipped to before the map.
CURVATURE = 0.1
CLIP_RADIUS = 2.3


def unit(vectors: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
    """Rows divided by their norm, at any scale of float32; a zero row stays zero, and its gradient is unchanged."""
    return _Unit.apply(vectors)[0]


class _Unit(torch.autograd.Function):
    """(u, norm). The derivatives use the outputs, so they can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        norms = threshold(torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64), 0.0, 1.0)
        directions = torch.div(vectors, norms, out=torch.empty_like(vectors))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(directions, norms)
        return directions, norms

    @staticmethod
    def backward(ctx: Any, of_directions: Tensor | None, of_norms: Tensor | None) -> Tensor | None:
        directions, norms = ctx.saved_tensors
        gradient = None
        if of_directions is not None:
            along = (of_directions * directions).sum(-1, keepdim=True)
            across = torch.addcmul(of_directions, along, directions, value=-1)
            twice = torch.is_grad_enabled()  # nothing with `out` can be differentiated
            gradient = (across / norms).to(across.dtype) if twice else torch.div(across, norms, out=across)
        if of_norms is not None:
            grown = (of_norms * directions).to(directions.dtype)
            gradient = grown if gradient is None else gradient + grown
        return gradient


def in_ball(vectors: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
    """Rows clipped to `CLIP_RADIUS`, then mapped into the Poincare ball of `CURVATURE` by the exponential map at 0.

    They are multiplied by sqrt(c), which makes them points of the unit ball: tanh(sqrt(c) norm(x)) x / norm(x).
    """
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64).clamp(max=CLIP_RADIUS)
    return unit(vectors) * (math.sqrt(CURVATURE) * norms).tanh().to(vectors.dtype)


def rounding_of(vectors: Float[Tensor, "*N D"]) -> float:
    """A bound on the squared distance of equal unit vectors after rounding; values up to D = 8192 are lower."""
    return (64 if vectors.dtype == torch.float64 else 16) * torch.finfo(vectors.dtype).eps


def inner_products(anchors: Float[Tensor, "*B N D"], others: Float[Tensor, "*B M D"]) -> Float[Tensor, "*B N M"]:
    """Inner products of all pairs of rows, with derivatives, in true float32, independent of torch's precision."""
    if torch.compiler.is_compiling() or not is_true_float32():
        return _inner_products(anchors, others)
    return anchors @ others.mT


@torch.library.custom_op("levelfield::inner_products", mutates_args=())
def _inner_products(anchors: Tensor, others: Tensor) -> Tensor:
    """One operator for the compiler, which cannot trace the change of precision."""
    with true_float32():
        return anchors @ others.mT


@_inner_products.register_fake
def _(anchors: Tensor, others: Tensor) -> Tensor:
    return anchors @ others.mT


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    anchors, others = ctx.saved_tensors
    needs_anchors, needs_others = ctx.needs_input_grad
    return (
        _inner_products(gradient, others.mT) if needs_anchors else None,
        _inner_products(gradient.mT, anchors.mT) if needs_others else None,
    )


_inner_products.register_autograd(_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def is_true_float32() -> bool:
    """Whether float32 products are currently computed in float32."""
    return all(own.fp32_precision in ("none", "ieee") for own, _ in PRODUCTS)


@contextmanager
def true_float32() -> Iterator[None]:
    """Compute float32 products in float32, even if a setting of torch has lowered their precision."""
    if is_true_float32():
        yield
        return
    before = [(own, own.fp32_precision, parent.fp32_precision) for own, parent in PRODUCTS]
    for own, _, _ in before:
        own.fp32_precision = "ieee"
    older = torch.get_float32_matmul_precision()  # raises if it disagrees with the newer settings
    if older != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if older != "highest":
            torch.set_float32_matmul_precision(older)
        for own, precision, inherited in before:
            own.fp32_precision = "none" if precision == inherited else precision
