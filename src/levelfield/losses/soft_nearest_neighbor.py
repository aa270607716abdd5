"""Soft nearest neighbour loss."""

from torch.nn.functional import softplus

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, pull_and_push_logsumexp


class SoftNearestNeighborLoss(PairLoss):
    """The probability that a random neighbour is of the anchor's class, nearer ones being likelier.

        L = mean_{i with P(i)} -log( sum_{p in P(i)} e^(s_ip/T) / sum_{j != i} e^(s_ij/T) )

    s is the cosine. The anchor itself is in neither sum (Vasilev & D'yakonov's Eq 6 prints it in both).

    Args:
        temperature: T, above 0.

    Cost: B^2. When: classes of several clusters: one near positive is enough.
    Papers: Salakhutdinov & Hinton 2007, https://proceedings.mlr.press/v2/salakhutdinov07a.html; Frosst et al. 2019,
    arXiv:1902.01889.
    """

    search_space = {"temperature": {"start": 0.1, "low": 0.001, "high": 10.0, "scale": "log"}}

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        logits = matrix / self.temperature
        same, different = pull_and_push_logsumexp(logits, positives, negatives)
        return mean_over(softplus(different - same), (positives.sum(1) > 0).to(matrix.dtype))
