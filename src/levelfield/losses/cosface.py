"""CosFace loss."""

from typing import Any

from levelfield.losses.base import Labels, check_above_0
from levelfield.losses.classification import ClassificationLoss, Logits, target_mask


class CosFaceLoss(ClassificationLoss):
    """Softmax classification with a margin subtracted from the cosine to the own class (LMCL, AM-softmax).

        L = mean_i CE( S (cos_ic - m [c = y_i]), y_i )

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, in units of cosine.
        scale: S, above 0.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: compact classes; easy to tune.
    Paper: Wang et al. 2018, "CosFace: Large Margin Cosine Loss for Deep Face Recognition", arXiv:1801.09414.
    """

    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "margin": {"start": 0.35, "low": 0.0, "high": 1.0, "scale": "linear"},
        "scale": {"start": 64.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.35,
        scale: float = 64.0,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        check_above_0(scale=scale)
        self.margin = margin
        self.scale = scale

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        return self.scale * (cosines - self.margin * target_mask(cosines, labels))
