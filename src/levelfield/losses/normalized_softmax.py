"""Normalised softmax loss."""

from jaxtyping import Float, Int
from torch import Tensor

from levelfield.losses.base import check_above_0
from levelfield.losses.classification import ClassificationLoss, WeightInit


class NormalizedSoftmaxLoss(ClassificationLoss):
    """Softmax classification by cosine with class weights, divided by a temperature.

        L = mean_i CE(cos(x_i, w_c) / T, y_i)

    With (N, D) embeddings and (N,) labels in 0..num_classes-1 it gives a scalar.

    Args:
        num_classes: C.
        embedding_size: D.
        temperature: T, above 0.
        class_fraction: share of the classes in play at each step (`ClassificationLoss`).
        label_smoothing: Fehervari et al. use 0.1.
        weight_init: how the class weights begin (`ClassificationLoss`).

    Cost: B C. When: the baseline to beat; one parameter to tune.
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
            num_classes,
            embedding_size,
            class_fraction,
            label_smoothing=label_smoothing,
            weight_init=weight_init,
        )
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def logits(self, cosines: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> Float[Tensor, "N C"]:
        return cosines / self.temperature
