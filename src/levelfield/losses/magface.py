"""MagFace loss."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.arcface import add_angle, check_angle
from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar, sample_weights
from levelfield.losses.classification import ClassificationLoss, ClassWeights, Logits


class MagFaceLoss(ClassificationLoss):
    """ArcFace with a margin that grows with the embedding's norm, so that the norm shows quality.

        L = mean_i CE( S cos(theta_ic + m(a_i) [c = y_i]), y_i ) + reg (1/a_i + a_i / u_a^2)
        a_i = norm(x_i) clipped to [l_a, u_a]    m(a) = l_m + (u_m - l_m) (a - l_a) / (u_a - l_a)

    A regulariser pulls the norms up. A norm outside of [l_a, u_a] has no gradient, as in the authors' code: choose l_a
    below the norms at the start of the training. Give embeddings with their norms (`normalize: false` in the learner).
    A miner's sample weights apply to both parts.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        lower_norm: l_a, above 0.
        upper_norm: u_a, above l_a.
        lower_margin: l_m, in degrees, in [0, 180]; the paper's 0.45 radians.
        upper_margin: u_m, in degrees, from l_m to 180; the paper's 0.8 radians.
        scale: S, above 0.
        regularizer_weight: reg, lambda_g in the paper, at least 0.
        easy_margin: no margin where theta is 90 degrees or more, as in the authors' code. False is the equation, with
            the rule of `ArcFaceLoss` beyond 180 degrees.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: the norm should show which samples are poor; raw embeddings.
    Paper: Meng et al. 2021, "MagFace: A Universal Representation for Face Recognition and Quality Assessment",
    arXiv:2103.06627.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        lower_norm: float = 10.0,
        upper_norm: float = 110.0,
        lower_margin: float = 25.8,
        upper_margin: float = 45.8,
        scale: float = 64.0,
        regularizer_weight: float = 35.0,
        easy_margin: bool = True,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        check_angle(lower_margin, scale)
        check_angle(upper_margin, scale)
        if not 0 < lower_norm < upper_norm or lower_margin > upper_margin or regularizer_weight < 0:
            raise ValueError(
                f"lower_norm={lower_norm} must lie between 0 and upper_norm={upper_norm}, lower_margin={lower_margin} "
                f"not above upper_margin={upper_margin}, and regularizer_weight={regularizer_weight} be at least 0"
            )
        self.lower_norm = lower_norm
        self.upper_norm = upper_norm
        self.lower_margin = lower_margin
        self.upper_margin = upper_margin
        self.scale = scale
        self.regularizer_weight = regularizer_weight
        self.easy_margin = easy_margin

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        loss = super().compute(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        norms = self._norms(embeddings)
        terms = (1 / norms + norms / self.upper_norm**2) * sample_weights(embeddings, indices_tuple)
        return loss + self.regularizer_weight * terms.mean()

    def class_logits(self, embeddings: Points, class_weights: ClassWeights, labels: Labels) -> Logits:
        lower, upper = math.radians(self.lower_margin), math.radians(self.upper_margin)
        share = (self._norms(embeddings) - self.lower_norm) / (self.upper_norm - self.lower_norm)
        margin = (lower + (upper - lower) * share)[:, None]
        cosines = inner_products(unit(embeddings), unit(class_weights))
        turned = add_angle(cosines, labels, margin)
        return self.scale * (torch.where(cosines > 0, turned, cosines) if self.easy_margin else turned)

    def _norms(self, embeddings: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """a."""
        norms = torch.linalg.vector_norm(embeddings, dim=1, dtype=torch.float64)
        return norms.clamp(self.lower_norm, self.upper_norm).to(embeddings.dtype)
