"""Normalised softmax loss."""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from levelfield.losses.base import Labels, check_above_0
from levelfield.losses.classification import ClassificationLoss, Logits


class NormalizedSoftmaxLoss(ClassificationLoss):
    """Softmax classification by cosine with class weights, divided by a temperature.

        L = mean_i CE(cos(x_i, w_c) / T, y_i)

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        temperature: T, above 0.
        label_smoothing: mass in [0, 1) spread evenly over the classes of the step; Fehervari et al. use 0.1.
        class_weights: `class_fraction` and `weight_init`, as for `ClassificationLoss`.

    Cost: B C. When: the baseline; one parameter to tune.
    Paper: Zhai & Wu 2019, "Classification is a Strong Baseline for Deep Metric Learning", arXiv:1811.12649 (Eq 1).
    """

    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "temperature": {"start": 0.05, "low": 0.001, "high": 10.0, "scale": "log"},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        label_smoothing: float = 0.0,
        **class_weights: Any,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class=1, **class_weights)
        check_above_0(temperature=temperature)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing={label_smoothing} must lie in [0, 1)")
        self.temperature = temperature
        self.label_smoothing = label_smoothing

    def logits(self, cosines: Logits, labels: Labels) -> Logits:
        return cosines / self.temperature

    def losses(self, logits: Logits, labels: Labels) -> Float[Tensor, " N"]:
        return cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
