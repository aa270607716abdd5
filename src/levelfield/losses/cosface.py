"""CosFace loss."""

from levelfield.losses.base import Labels, check_above_0
from levelfield.losses.classification import ClassificationLoss, Logits, WeightInit, target_mask


class CosFaceLoss(ClassificationLoss):
    """Softmax classification with a margin subtracted from the cosine to the own class (LMCL, AM-softmax).

        L = mean_i CE( S (cos_ic - m [c = y_i]), y_i )

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, in units of cosine.
        scale: S, above 0.
        class_fraction: share of the classes that a step compares with, above 0 and at most 1.
        weight_init: start of the class weights: `normal`, `uniform` or `class_means` (`ClassificationLoss`).

    Cost: B C. When: compact classes; easy to tune.
    Paper: Wang et al. 2018, "CosFace: Large Margin Cosine Loss for Deep Face Recognition", arXiv:1801.09414.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.35,
        scale: float = 64.0,
        class_fraction: float = 1.0,
        weight_init: WeightInit = "normal",
    ) -> None:
        super().__init__(num_classes, embedding_size, class_fraction, weight_init=weight_init)
        check_above_0(scale=scale)
        self.margin = margin
        self.scale = scale

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        return self.scale * (cosines - self.margin * target_mask(cosines, labels))
