"""Tuplet margin loss."""

import math

from torch.nn.functional import softplus

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, safe_sqrt, weighted_logsumexp


class TupletMarginLoss(PairLoss):
    """Compares each positive pair, made easier by an angle, with the anchor's negatives.

        L = mean_{(i,p)} log( 1 + sum_{n in N(i)} e^(S (cos theta_in - cos(theta_ip - b))) )

    theta is the angle between embeddings. b is slack, so the loss of a pair rises again below it. cos(theta - b) is
    computed as s cos b + sqrt(1 - s^2) sin b, finite where embeddings coincide.

    Args:
        margin: b, in degrees.
        scale: S, above 0.

    Cost: B^2. When: noisy or spread classes: positives have slack.
    Paper: Yu & Tao 2019, "Deep Metric Learning with Tuplet Margin Loss",
    https://openaccess.thecvf.com/content_ICCV_2019/html/Yu_Deep_Metric_Learning_With_Tuplet_Margin_Loss_ICCV_2019_paper.html.
    """

    search_space = {
        "margin": {"start": 5.73, "low": 0.0, "high": 30.0, "scale": "linear"},
        "scale": {"start": 64.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(self, margin: float = 5.73, scale: float = 64.0) -> None:
        super().__init__()
        check_above_0(scale=scale)
        self.margin = margin
        self.scale = scale

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        b = math.radians(self.margin)
        against = weighted_logsumexp(self.scale * matrix, negatives)[:, None]
        slackened = safe_sqrt(1 - matrix.square()).mul(math.sin(b)).add_(math.cos(b) * matrix)
        return mean_over(softplus(slackened.mul_(-self.scale).add_(against)), positives)
