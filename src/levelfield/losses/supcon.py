"""Supervised contrastive loss."""

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, nonzero_mean, weighted_logsumexp


class SupConLoss(PairLoss):
    """The mean log-probability of an anchor's positives among all other samples.

        L = NZ_i -(1/#P(i)) sum_{p in P(i)} [ s_ip/T - log sum_{j != i} e^(s_ij/T) ]

    s is the cosine. NZ is the mean over the anchors whose term is above 0. Anchors without positives are left out. A
    batch without any negative gives 0. Takes label sets.

    Args:
        temperature: T, above 0.

    Cost: B^2. When: large batches; compact classes.
    Paper: Khosla et al. 2020, "Supervised Contrastive Learning", arXiv:2004.11362 (L_out).
    """

    count_repeats = False
    takes_label_sets = True
    search_space = {"temperature": {"start": 0.1, "low": 0.001, "high": 10.0, "scale": "log"}}

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        logits = matrix / self.temperature
        everything = weighted_logsumexp(logits, positives + negatives)
        count = positives.sum(1)
        losses = everything - (positives * logits).sum(1) / count.clamp_min(1)
        return nonzero_mean(losses, count.sign() * negatives.amax())
