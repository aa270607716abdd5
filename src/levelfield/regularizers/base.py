"""The base class of the regularizers. N points, D dimensions."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, autocast, nn, promote_types

from levelfield.core.init_args import KeepsArguments

RegularizedPart = Literal["embeddings", "raw_embeddings", "class_weights"]


class Regularizer(KeepsArguments, nn.Module):
    """A penalty on the positions of points of any class, added to any loss; subclasses write `penalty(points)`.

        minimised: loss + weight * penalty

    The learner gives it the embeddings of the whole batch, of all processes. The penalty is float32 (float64 stays
    float64), even under autocast. A single point has penalty 0. A point that is not finite never gives a finite
    penalty.

    Args:
        weight: how much the penalty counts, at least 0.

    Attributes:
        of: which points it gets: `embeddings` as the loss gets them; `raw_embeddings`, which a learner has only with
            `normalize=False`; or the `class_weights` of the loss.
    """

    of: RegularizedPart = "embeddings"

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight={weight} must be a number of at least 0")
        self.weight = weight

    def forward(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        """The penalty, before its weight.

        Raises:
            ValueError: `points` is not a non-empty floating-point (N, D) tensor.
        """
        if points.ndim != 2 or not points.is_floating_point() or points.numel() == 0:
            raise ValueError(
                f"{type(self).__name__} takes a non-empty floating-point (N, D) tensor, not "
                f"{str(points.dtype).removeprefix('torch.')} of shape {tuple(points.shape)}"
            )
        with autocast(points.device.type, enabled=False):
            points = points.to(promote_types(points.dtype, torch.float32))
            nothing = (points * 0).sum()
            return nothing if len(points) == 1 else self.penalty(points) + nothing

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        """The penalty of two points or more, in their precision."""
        raise NotImplementedError
