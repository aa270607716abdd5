"""Normalised softmax loss."""

from levelfield.losses.base import Labels, check_above_0
from levelfield.losses.classification import ClassificationLoss, Logits, WeightInit


class NormalizedSoftmaxLoss(ClassificationLoss):
    """Softmax classification by cosine with class weights, divided by a temperature.

        L = mean_i CE(cos(x_i, w_c) / T, y_i)

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        temperature: T, above 0.
        class_fraction: share of the classes that a step compares with, above 0 and at most 1.
        label_smoothing: mass spread evenly over the classes; Fehervari et al. use 0.1.
        weight_init: start of the class weights: `normal`, `uniform` or `class_means` (`ClassificationLoss`).

    Cost: B C. When: the baseline; one parameter to tune.
    Paper: Zhai & Wu 2019, "Classification is a Strong Baseline for Deep Metric Learning", arXiv:1811.12649 (Eq 1).
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        class_fraction: float = 1.0,
        label_smoothing: float = 0.0,
        weight_init: WeightInit = "normal",
    ) -> None:
        super().__init__(
            num_classes, embedding_size, class_fraction, label_smoothing=label_smoothing, weight_init=weight_init
        )
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        return cosines / self.temperature
