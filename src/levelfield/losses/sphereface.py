"""SphereFace loss."""

import math
from typing import Any

import torch
from torch import Tensor

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Labels, Points, check_above_0
from levelfield.losses.classification import ClassificationLoss, ClassWeights, Logits


class SphereFaceLoss(ClassificationLoss):
    """Softmax classification that multiplies the angle to the own class; norms scale the logits.

        L = mean_i CE( S norm(x_i) psi(theta_ic), y_i )
        psi = (-1)^k cos(m theta) - 2k  for the own class, k = floor(m theta / pi);  cos theta for the others

    It depends on the norms of the embeddings: give embeddings that are not normalised, or a scale of about 30.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, a whole number from 1.
        scale: S, above 0.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: raw embeddings, or a scale of 30.
    Paper: Liu et al. 2017, "SphereFace: Deep Hypersphere Embedding for Face Recognition", arXiv:1704.08063.
    """

    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "margin": {"start": 4, "low": 1.0, "high": 6.0, "scale": "linear", "integer": True},
        "scale": {"start": 30.0, "low": 0.1, "high": 1000.0, "scale": "log"},  # 1 hardly trains unit embeddings
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: int = 4,
        scale: float = 1.0,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        if margin < 1 or margin != int(margin):
            raise ValueError(f"margin={margin} multiplies the angle and must be a whole number from 1")
        check_above_0(scale=scale)
        self.margin = int(margin)
        self.scale = scale

    def class_logits(self, embeddings: Points, class_weights: ClassWeights, labels: Labels) -> Logits:
        logits = self.logits(inner_products(unit(embeddings), unit(class_weights)), labels)
        return embeddings.norm(dim=1, keepdim=True) * logits

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        own = cosines.gather(1, labels[:, None])
        k = (self.margin * own.detach().clamp(-1, 1).acos() / math.pi).floor()
        psi = (1 - 2 * (k % 2)) * _multiple_angle(own, self.margin) - 2 * k
        return self.scale * cosines.scatter(1, labels[:, None], psi)


def _multiple_angle(cos: Tensor, m: int) -> Tensor:
    """cos(m theta) from cos theta: Chebyshev's polynomial, whose gradient is finite at 0 and 180 degrees."""
    previous, current = torch.ones_like(cos), cos
    for _ in range(m - 1):
        previous, current = current, 2 * cos * current - previous
    return current
