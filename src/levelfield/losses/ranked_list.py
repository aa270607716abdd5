"""Ranked list loss."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, no_grad

from levelfield.losses.base import Scalar
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, nonzero_mean, unit_distances, weighted_softmax


class RankedListLoss(PairLoss):
    """Positives must be inside a ball around the anchor, negatives outside a larger one.

        L = mean_i (1 - imb) L_P(i) + imb L_N(i)
        L_P(i) = sum_p w_ip v_ip / sum_p w_ip    over p with v_ip = d_ip - (alpha - m) > 0,  w_ip = e^(Tp v_ip)
        L_N(i) = sum_n w_in v_in / sum_n w_in    over n with v_in = alpha - d_in > 0,        w_in = e^(Tn v_in)

    d is the distance of unit vectors, in [0, 2]. The gradient flows through the weights.

    Args:
        margin: m, the gap between the two balls.
        Tn: sharpness of the negatives' weights.
        imbalance: imb in [0, 1]; 0.5 is half of Fehervari et al.'s L_P + L_N (Eq 8).
        alpha: radius of the outer ball; None is 1 + m/2.
        Tp: sharpness of the positives' weights.
        reduction: "mean" is over all anchors, "nonzero" over those whose term is above 0, as Fehervari et al. do.

    Cost: B^2. When: classes should keep their spread inside a ball.
    Paper: Wang et al. 2019, "Ranked List Loss for Deep Metric Learning", arXiv:1903.03238.
    """

    matrix = staticmethod(unit_distances)
    search_space = {
        "margin": {"start": 0.4, "low": 0.0, "high": 1.0, "scale": "linear"},
        "alpha": {"start": 1.2, "low": 0.2, "high": 2.0, "scale": "linear"},
        "Tn": {"start": 10.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(
        self,
        margin: float,
        Tn: float,
        imbalance: float = 0.5,
        alpha: float | None = None,
        Tp: float = 0.0,
        reduction: Literal["mean", "nonzero"] = "mean",
    ) -> None:
        super().__init__()
        if not 0 <= imbalance <= 1:
            raise ValueError(f"imbalance={imbalance} must lie in [0, 1]")
        if reduction not in ("mean", "nonzero"):
            raise ValueError(f"reduction={reduction!r} must be 'mean' or 'nonzero'")
        self.margin = margin
        self.Tn = Tn
        self.imbalance = imbalance
        self.alpha = 1 + margin / 2 if alpha is None else alpha
        self.Tp = Tp
        self.reduction = reduction

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        pull = _weighted_mean(matrix - (self.alpha - self.margin), positives, self.Tp)
        push = _weighted_mean(self.alpha - matrix, negatives, self.Tn)
        losses = (1 - self.imbalance) * pull + self.imbalance * push
        average = nonzero_mean if self.reduction == "nonzero" else mean_over
        return average(losses, losses.new_ones(len(losses)))


def _weighted_mean(violations: Pairs, pairs: Pairs, sharpness: float) -> Float[Tensor, " N"]:
    """Each row's mean of the violations above 0, weighted by e^(sharpness violation)."""
    violations = violations.relu_()
    with no_grad():
        counts = violations.sign().mul_(pairs)
        total = counts.sum(1)
    if sharpness == 0:
        return (counts * violations).sum(1) / total.clamp_min(1)
    return (weighted_softmax(sharpness * violations, counts) * violations).sum(1)
