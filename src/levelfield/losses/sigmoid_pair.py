"""Sigmoid pair loss."""

import math

import torch
from torch import nn
from torch.nn.functional import softplus

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs


class SigmoidPairLoss(PairLoss):
    """Classifies each pair on its own as same or different, by its cosine.

        L = (1/B) sum_{(i,j)} log(1 + e^(-z_ij (t s_ij + b)))    z_ij = 1 for a positive pair, -1 for a negative one

    The scale t and the bias b are learnt. s is the cosine. The labels say which pairs are positive; the paper pairs
    images and texts. No sample is compared with itself. B is the number of anchors. t is learnt as its logarithm. Give
    t and b their own learning rate and no weight decay.

    Args:
        scale: start of t, above 0.
        bias: start of b; far below 0, because most pairs are negative.

    Cost: B^2. When: many classes in a batch; no sum over a row that a temperature must fit.
    Paper: Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training", arXiv:2303.15343.
    """

    def __init__(self, scale: float = 10.0, bias: float = -10.0) -> None:
        super().__init__()
        check_above_0(scale=scale)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        logits = self.log_scale.to(matrix.dtype).exp() * matrix + self.bias.to(matrix.dtype)
        terms = softplus(torch.where(positives > 0, -logits, logits))
        return (terms * (positives + negatives)).sum(1).mean()
