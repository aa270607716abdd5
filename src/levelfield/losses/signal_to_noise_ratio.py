"""Signal-to-noise ratio contrastive loss."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import threshold

from levelfield.core.numerics import rounding_of
from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import PairLoss, Pairs, pull_and_push, squared_distances


class SignalToNoiseRatioContrastiveLoss(PairLoss):
    """Contrastive loss on the ratio of the noise between two embeddings to the anchor's signal.

        L = NZ_{(i,p)} [snr_ip - m_pos]+  +  NZ_{(i,n)} [m_neg - snr_in]+  +  reg mean_i abs(sum_k x_ik)
        snr_ij = Var(u_i - u_j) / Var(u_i)

    u are unit vectors, Var the variance over their D coordinates. The anchor i and j cannot be exchanged. NZ is the
    mean over the terms above 0. An anchor with equal coordinates is compared by Var(u_i - u_j) only.

    Args:
        pos_margin: m_pos.
        neg_margin: m_neg.
        regularizer_weight: reg, which pulls the coordinate sum of the embeddings (not normalised) to 0. The Reality
            Check searched it in [0, 1].

    Cost: B^2. When: single coordinates matter.
    Paper: Yuan et al. 2019, "Signal-To-Noise Ratio: A Robust Distance Metric for Deep Metric Learning",
    arXiv:1904.02616.
    """

    search_space = {
        "pos_margin": {"start": 0.1, "low": 0.0, "high": 2.0, "scale": "linear"},  # 0 pulls positives without end
        "neg_margin": {"start": 1.0, "low": 0.0, "high": 2.0, "scale": "linear"},
        "regularizer_weight": {"low": 0.0, "high": 1.0, "scale": "linear"},
    }

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0, regularizer_weight: float = 0.0) -> None:
        super().__init__()
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.regularizer_weight = regularizer_weight

    @staticmethod
    def matrix(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
        """snr_ij: (D - 1) Var(u) is the squared length of u minus its mean."""
        anchors = anchors - anchors.mean(1, keepdim=True)
        others = others - others.mean(1, keepdim=True)
        signal = anchors.square().sum(1, keepdim=True)
        is_constant = signal <= rounding_of(signal) ** 2  # up to rounding
        ratios = squared_distances(anchors, others) / torch.where(is_constant, 1.0, signal)
        return threshold(ratios, rounding_of(ratios), 0.0)

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        loss = super().compute(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if self.regularizer_weight:
            loss = loss + self.regularizer_weight * embeddings.sum(1).abs().mean()
        return loss

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        return pull_and_push(matrix, positives, negatives, self.pos_margin, self.neg_margin)
