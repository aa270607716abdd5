"""ArcFace loss."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import threshold

from levelfield.losses.base import Labels, check_above_0
from levelfield.losses.classification import ClassificationLoss, Logits
from levelfield.losses.pairs import safe_sqrt


class ArcFaceLoss(ClassificationLoss):
    """Softmax classification with a margin added to the angle to the own class.

        L = mean_i CE(S cos(theta_ic + m [c = y_i]), y_i)

    theta_ic is the angle between embedding i and class weight c. Where theta + m would exceed 180 degrees, the cosine
    of the own class is cos theta - m sin m (m in radians). The logit jumps there, from -1 to -1.117 at the default
    margin.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, in degrees, in [0, 180].
        scale: S, above 0.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: many classes, each of which should be compact.
    Paper: Deng et al. 2019, "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", arXiv:1801.07698.

    Example:
        >>> import torch
        >>> loss = ArcFaceLoss(num_classes=10, embedding_size=4, margin=20)
        >>> loss(torch.randn(8, 4), torch.arange(8)).shape
        torch.Size([])
    """

    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "margin": {"start": 28.6, "low": 0.0, "high": 90.0, "scale": "linear"},
        "scale": {"start": 64.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64.0,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        check_angle(margin, scale)
        self.margin = margin
        self.scale = scale

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        return self.scale * add_angle(cosines, labels, math.radians(self.margin))


def add_angle(cosines: Logits, labels: Labels, margin: float | Float[Tensor, "N 1"]) -> Logits:
    """The cosines with `margin` radians added to the angle of each row's own class."""
    own = labels[:, None]
    if isinstance(margin, Tensor):
        return cosines.scatter(1, own, _turned(cosines.gather(1, own), margin)[0])
    return _AddAngle.apply(cosines, own, margin)


class _AddAngle(torch.autograd.Function):
    """`forward` also computes the slope of each row's own entry, which `backward` repeats for a second derivative."""

    @staticmethod
    def forward(ctx: Any, cosines: Tensor, own: Tensor, margin: float) -> Tensor:
        turned, slopes = _turned(cosines.gather(1, own), margin)
        ctx.save_for_backward(cosines, own, slopes)
        ctx.margin = margin
        return cosines.scatter(1, own, turned)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosines, own, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _turned(cosines.gather(1, own), ctx.margin)[1]
        return gradient.scatter(1, own, gradient.gather(1, own) * slopes), None, None


def _turned(cos: Tensor, margin: float | Tensor) -> tuple[Tensor, Tensor]:
    """cos(theta + margin), or what continues it beyond 180 degrees, and its derivative with respect to cos theta."""
    cos_m, sin_m = (margin.cos(), margin.sin()) if isinstance(margin, Tensor) else (math.cos(margin), math.sin(margin))
    sin = safe_sqrt(1 - cos.square())
    beyond = cos < -cos_m
    turned = torch.where(beyond, cos - margin * sin_m, cos * cos_m - sin * sin_m)
    slopes = cos_m + sin_m * cos / threshold(sin, 0.0, torch.inf)
    return turned, slopes.masked_fill(beyond, 1.0)


def check_angle(margin: float, scale: float) -> None:
    """Raise ValueError unless margin is an angle in degrees and scale positive."""
    if not 0 <= margin <= 180:
        raise ValueError(f"margin={margin} is an angle in degrees and must lie in [0, 180]")
    check_above_0(scale=scale)
