"""Circle loss."""

from torch.nn.functional import relu, softplus

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, nonzero_mean, weighted_logsumexp


class CircleLoss(PairLoss):
    """Pulls positives and pushes negatives in proportion to their distance from the optimum.

        L = NZ_i softplus( LSE_{n in N(i)} gamma a_in (s_in - m)  +  LSE_{p in P(i)} -gamma a_ip (s_ip - (1 - m)) )
        a_in = [s_in + m]+    a_ip = [1 + m - s_ip]+

    s is the cosine, LSE the log-sum-exp, NZ the mean over the anchors whose term is above 0. Anchors without positives
    or without negatives are left out. The weights a are constants for the gradient.

    Args:
        m: relaxation, in units of cosine.
        gamma: scale, above 0.

    Cost: B^2. When: some pairs are nearly right and others far from it.
    Paper: Sun et al. 2020, "Circle Loss: A Unified Perspective of Pair Similarity Optimization", arXiv:2002.10857.
    """

    count_repeats = False
    search_space = {
        "m": {"start": 0.4, "low": 0.0, "high": 1.0, "scale": "linear"},
        "gamma": {"start": 80.0, "low": 0.1, "high": 1000.0, "scale": "log"},
    }

    def __init__(self, m: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        check_above_0(gamma=gamma)
        self.m = m
        self.gamma = gamma

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        fixed = matrix.detach()
        push = self.gamma * relu(fixed + self.m) * (matrix - self.m)
        pull = self.gamma * relu(1 + self.m - fixed) * (1 - self.m - matrix)
        both = weighted_logsumexp(push, negatives) + weighted_logsumexp(pull, positives)
        comparable = (positives.sum(1) > 0) & (negatives.sum(1) > 0)
        return nonzero_mean(softplus(both), comparable.to(matrix.dtype))
