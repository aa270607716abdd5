"""AdaFace loss."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, no_grad

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar, check_above_0
from levelfield.losses.classification import ClassificationLoss, ClassWeights, Logits
from levelfield.losses.pairs import safe_sqrt

# Added to the standard deviation of the norms, as in the authors' code: nearly equal norms count as equal.
LEAST_SPREAD = 1e-3


class AdaFaceLoss(ClassificationLoss):
    """Softmax classification with a margin that depends on the embedding's norm, a sign of quality.

        L = mean_i CE( S f_ic, y_i )    f_ic = cos(theta_ic - m z_i) - (m z_i + m) for the own class, cos theta_ic else
        z_i = clip( (norm(x_i) - mean) / (std + 0.001) h, -1, 1 )

    z is -1 for a norm far below the mean: the margin is then ArcFace's. At the mean it is CosFace's. Far above the mean
    z is 1, and hard samples weigh more. z is a constant for the gradient. The mean and the standard deviation of the
    norms are running averages over the training batches. They start at those of the first batch. Angles stay in [0,
    180] degrees. Give embeddings with their norms (`normalize: false` in the learner): with unit length this is
    CosFace.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, in radians and in units of cosine, at least 0.
        scale: S, above 0.
        concentration: h, above 0; with 1/3, two thirds of the z are within +-1/3.
        momentum: share of the running mean and standard deviation that a batch keeps, in [0, 1).
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: samples of very different quality; raw embeddings.
    Paper: Kim et al. 2022, "AdaFace: Quality Adaptive Margin for Face Recognition", arXiv:2204.00964.

    Differs: the authors' code clips norms to [0.001, 100]. Its mean and standard deviation start at 20 and 100. In a
    short training the norms change faster than a momentum of 0.99 follows: after 25 steps on letters 91% of the z are
    clipped.
    """

    norm_mean: Tensor
    norm_std: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.4,
        scale: float = 64.0,
        concentration: float = 0.333,
        momentum: float = 0.99,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        check_above_0(scale=scale, concentration=concentration)
        if margin < 0 or not 0 <= momentum < 1:
            raise ValueError(f"margin={margin} must be at least 0 and momentum={momentum} lie in [0, 1)")
        self.margin = margin
        self.scale = scale
        self.concentration = concentration
        self.momentum = momentum
        self.register_buffer("norm_mean", torch.zeros(()))  # 0 until the first batch
        self.register_buffer("norm_std", torch.zeros(()))

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if self.training:
            self._observe(_norms(embeddings))
        return super().compute(embeddings, labels, indices_tuple, ref_emb, ref_labels)

    def class_logits(self, embeddings: Points, class_weights: ClassWeights, labels: Labels) -> Logits:
        cosines = inner_products(unit(embeddings), unit(class_weights))
        own, quality = cosines.gather(1, labels[:, None]), self.quality(embeddings)[:, None]
        angle = -self.margin * quality
        turned = own * angle.cos() - safe_sqrt(1 - own.square()) * angle.sin()
        turned = torch.where((angle < 0) & (own > angle.cos()), 1.0, turned)
        turned = torch.where((angle > 0) & (own < -angle.cos()), -1.0, turned)
        return self.scale * cosines.scatter(1, labels[:, None], turned - self.margin * (1 + quality))

    @no_grad()
    def quality(self, embeddings: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """z of each embedding, by the running mean and standard deviation; 0 before the first batch."""
        deviations = (_norms(embeddings) - self.norm_mean) / (self.norm_std + LEAST_SPREAD)
        z = (deviations * self.concentration).clamp(-1, 1).to(embeddings.dtype)
        return torch.where(self.norm_mean > 0, z, 0.0)

    @no_grad()
    def _observe(self, norms: Float[Tensor, " N"]) -> None:
        """Update the running mean and standard deviation with the batch, unless a norm is not finite."""
        now = torch.stack([norms.mean(), norms.std(correction=min(1, len(norms) - 1))])
        before = torch.stack([self.norm_mean, self.norm_std]).to(now.dtype)
        kept = torch.where(before[0] > 0, self.momentum * before + (1 - self.momentum) * now, now)
        kept = torch.where(now.isfinite().all(), kept, before)
        self.norm_mean.copy_(kept[0])
        self.norm_std.copy_(kept[1])


def _norms(embeddings: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
    return torch.linalg.vector_norm(embeddings.detach(), dim=1, dtype=torch.float64)
