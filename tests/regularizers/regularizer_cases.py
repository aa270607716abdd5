"""The shipped regularizers, float64 points, and the check that each passes: a loop over its equation."""

import torch
from torch import Tensor

from levelfield import regularizers

EVERY = {name: getattr(regularizers, name) for name in regularizers.__all__ if name != "Regularizer"}


def points(number: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(number, dim, generator=generator, dtype=torch.float64)


def unit(row: Tensor) -> Tensor:
    return row / (row * row).sum().sqrt()


def same_as_loop(value: Tensor, expected: Tensor, *given: Tensor, tolerance: float = 1e-10) -> None:
    """Values, and gradients at `given`, agree relative to the largest entry of each."""
    assert expected.abs() > 0
    torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=tolerance)
    for each in given:
        (ours,), (theirs,) = (torch.autograd.grad(of, each, retain_graph=True) for of in (value, expected))
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))
