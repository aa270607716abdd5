"""Decoupled contrastive loss."""

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, weighted_logsumexp


class DecoupledContrastiveLoss(PairLoss):
    """NT-Xent with only the negatives in the denominator (DCL).

        L = mean_{(i,p)} -s_ip/T + log sum_{n in N(i)} e^(s_in/T)

    s is the cosine. In NT-Xent a pair that is already near has a small gradient, and so do its negatives. Here the pull
    is constant, and the push does not depend on the positive. The loss may be below 0. Anchors without negatives are
    left out.

    Args:
        temperature: T, above 0.

    Cost: B^2. When: small batches, in which NT-Xent finds few hard negatives.
    Paper: Yeh et al. 2022, "Decoupled Contrastive Learning", arXiv:2110.06848.
    """

    search_space = {"temperature": {"start": 0.1, "low": 0.001, "high": 10.0, "scale": "log"}}

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        logits = matrix / self.temperature
        against = weighted_logsumexp(logits, negatives)[:, None]
        return mean_over(against - logits, positives * (negatives.amax(1, keepdim=True) > 0))
