"""Hyperbolic cross-entropy loss."""

import math

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from levelfield.core.numerics import CURVATURE, in_ball, rounding_of
from levelfield.losses.base import Points, RefPoints, Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, safe_sqrt, squared_distances, weighted_logsumexp


def poincare_distances(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Distances in the Poincare ball of points from `in_ball`; exactly 0 between those that coincide."""
    rooms = (1 - anchors.square().sum(1, keepdim=True)) * (1 - others.square().sum(1))
    apart = safe_sqrt(squared_distances(anchors, others) / rooms, rounding_of(anchors))
    return apart.asinh() * (2 / math.sqrt(CURVATURE))


class HyperbolicCrossEntropyLoss(PairLoss):
    """Compares each positive pair with the anchor's negatives, by distances in a Poincare ball.

        L = mean_{(i,p)} -log( e^(-D_ip/T) / (e^(-D_ip/T) + sum_{n in N(i)} e^(-D_in/T)) )
        D_ij = (2/sqrt(c)) artanh( sqrt(c) norm(-z_i (+) z_j) )    z = tanh(sqrt(c) norm(v)) v / (sqrt(c) norm(v))
        v = min(1, r / norm(x)) x

    (+) is Moebius addition, c = 0.1 the ball's curvature and r = 2.3 the clipping radius, all as in the paper. With two
    samples of each class this is the paper's equation. Give embeddings with their norms and rank by D (`normalize:
    false`, `distance: poincare` in the learner). The authors start the embedder at an orthogonal matrix and a bias of 0
    (`LinearEmbedder(orthogonal=True)`).

    Args:
        temperature: T, above 0.

    Cost: B^2. When: classes that form a hierarchy; raw embeddings.
    Paper: Ermolov et al. 2022, "Hyperbolic Vision Transformers: Combining Improvements in Metric Learning",
    arXiv:2203.10833.

    Differs: with more than two samples of a class the authors' code takes two of each at a time, so it compares a
    positive only with the negatives among these. Here all negatives of the anchor count.
    """

    matrix = staticmethod(poincare_distances)

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def points(self, embeddings: Points, ref_emb: RefPoints) -> tuple[Points, Float[Tensor, "M D"]]:
        anchors = in_ball(embeddings)
        return anchors, anchors if ref_emb is None else in_ball(ref_emb)

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        logits = matrix / -self.temperature
        return mean_over(softplus(weighted_logsumexp(logits, negatives)[:, None] - logits), positives)
