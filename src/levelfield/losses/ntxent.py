"""NT-Xent loss."""

from torch.nn.functional import softplus

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over, weighted_logsumexp


class NTXentLoss(PairLoss):
    """Compares each positive pair with the anchor's negatives (InfoNCE; N-pairs in the Reality Check).

        L = mean_{(i,p)} -log( e^(s_ip/T) / (e^(s_ip/T) + sum_{n in N(i)} e^(s_in/T)) )

    s is the cosine. The anchor's other positives are not in the denominator. Exact at any temperature.
    Takes label sets.

    Args:
        temperature: T, above 0.
        probability_floor: f of -log(probability + f). 0 is exact. The Reality Check's program used 1e-20, which at its
            optimum for SOP, T = 0.00024, removes the gradient of most pairs.

    Cost: B^2. When: many classes in a batch; one parameter to tune.
    Papers: Sohn 2016, https://papers.nips.cc/paper/2016/hash/6b180037abbebea991d8b1232f8a8ca9-Abstract.html; Oord et
    al. 2018, arXiv:1807.03748; Chen et al. 2020, arXiv:2002.05709; this form Musgrave et al. 2020, arXiv:2003.08505.
    """

    takes_label_sets = True
    search_space = {"temperature": {"start": 0.07, "low": 0.001, "high": 10.0, "scale": "log"}}

    def __init__(self, temperature: float = 0.07, probability_floor: float = 0.0) -> None:
        super().__init__()
        check_above_0(temperature=temperature)
        if not 0 <= probability_floor < 1:
            raise ValueError(f"probability_floor={probability_floor} must lie in [0, 1)")
        self.temperature = temperature
        self.probability_floor = probability_floor

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        logits = matrix / self.temperature
        against = weighted_logsumexp(logits, negatives)[:, None]
        terms = softplus(against - logits)
        if self.probability_floor > 0:
            terms = -((-terms).exp() + self.probability_floor).log()
        return mean_over(terms, positives)
