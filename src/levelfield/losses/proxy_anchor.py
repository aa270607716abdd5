"""Proxy anchor loss."""

import math
from typing import Literal

import torch
from torch import nn, no_grad
from torch.nn.functional import softplus

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Labels, Points, Scalar, check_above_0
from levelfield.losses.classification import ClassificationLoss, ClassWeights, SampleWeights, WeightInit
from levelfield.losses.pairs import weighted_logsumexp


class ProxyAnchorLoss(ClassificationLoss):
    """Each class's proxy is an anchor: it pulls the class's samples and pushes all others.

        L = (1/#present) sum_{c present} log( 1 + sum_{y_i = c} e^(-a (cos_ic - m)) )
          + (1/C)        sum_c           log( 1 + sum_{y_i != c} e^(a (cos_ic + m)) )

    With a miner, a sample of weight v adds v - 1 to its exponents.

    Args:
        num_classes: number C of classes; labels are 0 to C - 1.
        embedding_size: length D of an embedding.
        margin: m, in units of cosine.
        alpha: a, above 0.
        class_fraction: share of the classes that a step compares with, above 0 and at most 1. C in the equation is then
            their number, so the second mean is over other classes than without it.
        weight_init: start of the class weights: `paper`, N(0, 2 / C) (Kaiming, fan out) as in the paper's code, or one
            of `ClassificationLoss`.

    Cost: B C. When: fast convergence; many samples of a class in a batch.
    Paper: Kim et al. 2020, "Proxy Anchor Loss for Deep Metric Learning", arXiv:2003.13911.
    """

    search_space = {
        "loss_lr": {"start": 0.01, "low": 1e-6, "high": 10.0, "scale": "log"},
        "margin": {"start": 0.1, "low": 0.0, "high": 1.0, "scale": "linear"},
        "alpha": {"start": 32.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32.0,
        class_fraction: float = 1.0,
        weight_init: Literal["paper"] | WeightInit = "paper",
    ) -> None:
        drawn = "normal" if weight_init == "paper" else weight_init
        super().__init__(num_classes, embedding_size, class_fraction, weight_init=drawn)
        check_above_0(alpha=alpha)
        self.margin = margin
        self.alpha = alpha
        if weight_init == "paper":
            nn.init.normal_(self.class_weights, std=math.sqrt(2 / num_classes))

    def class_loss(
        self, embeddings: Points, class_weights: ClassWeights, labels: Labels, sample_weights: SampleWeights
    ) -> Scalar:
        cosines_CN = inner_products(unit(class_weights), unit(embeddings))
        with no_grad():  # a sample is pulled to its own proxy and pushed from all others
            own_CN = torch.zeros_like(cosines_CN).scatter_(0, labels[None, :], 1.0)
            counted = torch.stack([own_CN, 1 - own_CN])
            signs_CN = self.alpha - 2 * self.alpha * own_CN
            extra_N = sample_weights + (self.alpha * self.margin - 1)
            present = own_CN.amax(1).sum()
        pull, push = softplus(weighted_logsumexp(signs_CN * cosines_CN + extra_N, counted))
        return torch.add(pull / present, push, alpha=1 / len(push)).sum()
