"""SoftTriple loss."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Labels, Points, check_above_0
from levelfield.losses.classification import ClassificationLoss, ClassWeights, SampleWeights, WeightInit, target_mask


class SoftTripleLoss(ClassificationLoss):
    """Softmax classification with several centres for each class; the nearest weighs most.

        L = mean_i CE( la (sim_ic - m [c = y_i]), y_i )  +  reg R
        sim_ic = sum_k softmax_k(u_i.w_ck / gamma) u_i.w_ck
        R = mean over the pairs of centres of one class of sqrt(2 + 1e-5 - 2 w_ck.w_ck')

    u and w are unit vectors.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        centers_per_class: centres for each class.
        la: scale of the logits, above 0.
        gamma: with a larger value the centres of a class share more evenly; the Reality Check found 19 to 59, nearly a
            mean.
        margin: m, in units of cosine.
        reg_weight: reg, which pulls the centres of a class together (for the classes of the step).
        class_fraction: share of the classes that a step compares with, above 0 and at most 1.
        weight_init: start of the centres: `paper`, uniform in +-1/sqrt(their number) (Kaiming over the centres) as in
            the paper's code, or one of `ClassificationLoss`.

    Cost: B C. When: classes of several clusters.
    Paper: Qian et al. 2019, "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", arXiv:1909.05235.

    Differs: the paper regularises by tau = 0.2, which is a `reg_weight` of 0.1; the default here is 0.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        la: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        reg_weight: float = 0.0,
        class_fraction: float = 1.0,
        weight_init: Literal["paper"] | WeightInit = "paper",
    ) -> None:
        drawn = "normal" if weight_init == "paper" else weight_init
        super().__init__(num_classes, embedding_size, class_fraction, centers_per_class, weight_init=drawn)
        check_above_0(la=la, gamma=gamma)
        self.la = la
        self.gamma = gamma
        self.margin = margin
        self.reg_weight = reg_weight
        if weight_init == "paper":
            bound = 1 / math.sqrt(num_classes * centers_per_class)
            nn.init.uniform_(self.class_weights, -bound, bound)

    def logits(self, cosines: Float[Tensor, "N *K C"], labels: Int[Tensor, " N"]) -> Float[Tensor, "N C"]:
        similarities = cosines
        if self.centers_per_class > 1:
            similarities = ((cosines / self.gamma).softmax(1) * cosines).sum(1)
        return self.la * (similarities - self.margin * target_mask(similarities, labels))

    def class_loss(
        self, embeddings: Points, class_weights: ClassWeights, labels: Labels, sample_weights: SampleWeights
    ) -> Float[Tensor, ""]:
        loss = super().class_loss(embeddings, class_weights, labels, sample_weights)
        if self.reg_weight and self.centers_per_class > 1:
            loss = loss + self.reg_weight * self._spread(class_weights)
        return loss

    def _spread(self, class_weights: Float[Tensor, "CK D"]) -> Float[Tensor, ""]:
        """R: the mean distance between the centres of a class."""
        centers_CKD = unit(class_weights).unflatten(0, (-1, self.centers_per_class))
        dots_CKK = inner_products(centers_CKD, centers_CKD)
        K = self.centers_per_class
        rows, columns = torch.triu_indices(K, K, offset=1, device=class_weights.device)
        return (2 + 1e-5 - 2 * dots_CKK[:, rows, columns]).sqrt().mean()
