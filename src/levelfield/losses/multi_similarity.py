"""Multi-similarity loss."""

import torch
from torch.nn.functional import softplus

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, pull_and_push_logsumexp


class MultiSimilarityLoss(PairLoss):
    """Soft maximum over each anchor's positives that are too far and negatives that are too near.

        L = mean_i  (1/alpha) log(1 + sum_{p in P(i)} exp(-alpha (s_ip - base)))
                  + (1/beta)  log(1 + sum_{n in N(i)} exp( beta  (s_in - base)))

    s is the cosine. Anchors without positives stay in the mean. Takes label sets.

    Args:
        alpha: sharpness for positives, above 0.
        beta: sharpness for negatives, above 0.
        base: the cosine that separates near from far.

    Cost: B^2. When: a strong default; with `MultiSimilarityMiner`.
    Paper: Wang et al. 2019, "Multi-Similarity Loss with General Pair Weighting", arXiv:1904.06627.
    """

    count_repeats = False
    takes_label_sets = True
    search_space = {
        "alpha": {"start": 2.0, "low": 0.1, "high": 1000.0, "scale": "log"},
        "beta": {"start": 50.0, "low": 0.1, "high": 1000.0, "scale": "log"},
        "base": {"start": 0.5, "low": 0.0, "high": 1.0, "scale": "linear"},
    }

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> None:
        super().__init__()
        check_above_0(alpha=alpha, beta=beta)
        self.alpha = alpha
        self.beta = beta
        self.base = base

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        pull, push = pull_and_push_logsumexp(matrix - self.base, positives, negatives, -self.alpha, self.beta)
        return torch.add(softplus(pull) / self.alpha, softplus(push), alpha=1 / self.beta).mean()
