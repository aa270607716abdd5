"""Soft ranks: how many items of a row rank before each of its positives, counted by a differentiable step.

N anchors, M others, P the largest number of positives of an anchor.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from levelfield.losses.pairs import ROW_VALUES, Pairs
from levelfield.losses.triplets import padded_positives

# Pairs (positive, other) in memory at a time on a CPU, so that they fit its cache; on a GPU `ROW_VALUES`.
CACHED_VALUES = 2**17
# Beyond this a sigmoid is flat to 1e-26, and the smallest float32 numbers are slow on a CPU.
FLAT = 60.0


class Step(Protocol):
    """How much an item counts that is x above another: nearly 0 if far below. Both methods may overwrite x."""

    def value(self, x: Tensor) -> Tensor: ...

    def slope(self, x: Tensor) -> Tensor: ...


class SigmoidStep:
    """1 / (1 + e^(-x/T))."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def value(self, x: Tensor) -> Tensor:
        return x.div_(self.temperature).clamp_(-FLAT, FLAT).sigmoid_()

    def slope(self, x: Tensor) -> Tensor:
        value = self.value(x)
        return value * (1 - value) / self.temperature


def levels_of_positives(matrix: Pairs, positives: Pairs) -> tuple[Float[Tensor, "N P"], Bool[Tensor, "N P"]]:
    """Each anchor's entries of `matrix` at its positives, padded, and a mask of the real ones."""
    columns, present = padded_positives(positives)
    return matrix.gather(1, columns), present


def soft_counts(matrix: Pairs, levels: Float[Tensor, "N P"], weights: Pairs, step: Step) -> Float[Tensor, "N P"]:
    """How many entries of a row are above each of its levels: sum_j w_ij step(x_ij - l_ip)."""
    return _SoftCounts.apply(matrix, levels, weights, step)


class _SoftCounts(torch.autograd.Function):
    """Computed in blocks of rows, and again in the backward pass: N x P x M values are never in memory at once."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, levels: Tensor, weights: Tensor, step: Step) -> Tensor:
        ctx.save_for_backward(matrix, levels, weights)
        ctx.step = step
        counts = [step.value(above).mul_(w[:, None]).sum(2) for above, w in _blocks(matrix, levels, weights)]
        return torch.cat(counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        matrix, levels, weights = ctx.saved_tensors
        of_matrix, of_levels = [], []
        for above, w, of_counts in _blocks(matrix, levels, weights, gradient):
            slopes = ctx.step.slope(above) * w[:, None] * of_counts[:, :, None]
            of_matrix.append(slopes.sum(1))
            of_levels.append(-slopes.sum(2))
        return torch.cat(of_matrix), torch.cat(of_levels), None, None


def _blocks(matrix: Tensor, levels: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """For each block of rows: their entries minus their levels, (rows, P, M), and the same rows of `others`."""
    held = CACHED_VALUES if matrix.device.type == "cpu" else ROW_VALUES
    size = max(1, held // max(1, levels.shape[1] * matrix.shape[1]))
    for rows, levels_of_rows, *rest in zip(*(each.split(size) for each in (matrix, levels, *others)), strict=True):
        yield rows[:, None, :] - levels_of_rows[:, :, None], *rest
