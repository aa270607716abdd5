"""Smooth-AP loss."""

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over
from levelfield.losses.soft_ranks import SigmoidStep, levels_of_positives, soft_counts


class SmoothAPLoss(PairLoss):
    """One minus the average precision of each anchor's ranking, with ranks counted by sigmoids.

        L = mean_{i with P(i)} 1 - (1/#P(i)) sum_{p in P(i)} R+_ip / (R+_ip + sum_{n in N(i)} G(s_in - s_ip))
        R+_ip = 1 + sum_{q in P(i), q != p} G(s_iq - s_ip)    G(x) = 1 / (1 + e^(-x/T))

    s is the cosine. As in the equation, the anchor is not in its own ranking. The authors' code counts it as a
    positive; `ref_emb=embeddings` does so too.

    Args:
        temperature: T, above 0.

    Cost: pairs x B, computed some rows at a time. When: to optimise the ranking itself; large batches.
    Paper: Brown et al. 2020, "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", arXiv:2007.12163.

    Not for `torch.compile(fullgraph=True)`: the largest number of positives of an anchor sets the shapes.
    """

    count_repeats = False
    search_space = {"temperature": {"start": 0.01, "low": 0.001, "high": 10.0, "scale": "log"}}

    def __init__(self, temperature: float = 0.01) -> None:
        super().__init__()
        check_above_0(temperature=temperature)
        self.temperature = temperature

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        step = SigmoidStep(self.temperature)
        levels, present = levels_of_positives(matrix, positives)
        same = 0.5 + soft_counts(levels, levels, present.to(matrix.dtype), step)  # 1 - G(0), which the sum contains
        others = soft_counts(matrix, levels, negatives, step)
        count = present.sum(1)
        losses = 1 - (present * same / (same + others)).sum(1) / count.clamp_min(1)
        return mean_over(losses, (count > 0).to(matrix.dtype))
