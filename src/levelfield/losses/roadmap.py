"""ROADMAP loss."""

import torch
from torch import Tensor, no_grad
from torch.nn.functional import relu

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over
from levelfield.losses.soft_ranks import SigmoidStep, levels_of_positives, soft_counts


class ROADMAPLoss(PairLoss):
    """An upper bound of one minus the average precision, plus a calibration of the cosines.

        L = mean_{i with P(i)} (1 - lambda) SupAP_i + lambda C_i
        SupAP_i = 1 - (1/#P(i)) sum_{p in P(i)} R+_ip / (R+_ip + sum_{n in N(i)} H-(s_in - s_ip))
        R+_ip = 1 + #{q in P(i), q != p: s_iq >= s_ip}
        H-(x) = G(x) for x <= 0; G(x) + 1/2 up to delta; rho (x - delta) + G(delta) + 1/2 beyond
        G(x) = 1 / (1 + e^(-x/T))
        C_i = (1/#P(i)) sum_{p in P(i)} [alpha - s_ip]+ + (1/#N(i)) sum_{n in N(i)} [s_in - beta]+

    The bound does not saturate. s is the cosine. Positives do not push positives. C is the mean over all of an anchor's
    pairs.

    Args:
        temperature: T, above 0.
        rho: slope for negatives far before a positive, above 0.
        delta: a negative is far from here on, in units of cosine, at least 0.
        weight: lambda, in [0, 1].
        alpha: the cosine that positives should reach.
        beta: the cosine that negatives should stay below.

    Cost: pairs x B, computed some rows at a time. When: to optimise the ranking with batches that are not large.
    Paper: Ramzi et al. 2021, "Robust and Decomposable Average Precision for Image Retrieval", arXiv:2110.01445.

    Differs: the authors' code counts the query as a positive in its own ranking, so every rank is one higher. Its slope
    beyond delta starts at 1.44, where the equation has 1.493. It averages C over the pairs whose term is above 0.

    Not for `torch.compile(fullgraph=True)`: the largest number of positives of an anchor sets the shapes.
    """

    count_repeats = False

    def __init__(
        self,
        temperature: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        weight: float = 0.5,
        alpha: float = 0.9,
        beta: float = 0.6,
    ) -> None:
        super().__init__()
        check_above_0(temperature=temperature, rho=rho)
        if delta < 0 or not 0 <= weight <= 1:
            raise ValueError(f"delta={delta} must be at least 0 and weight={weight} lie in [0, 1]")
        self.temperature = temperature
        self.rho = rho
        self.delta = delta
        self.weight = weight
        self.alpha = alpha
        self.beta = beta

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        levels, present = levels_of_positives(matrix, positives)
        with no_grad():
            ascending = levels.masked_fill(~present, -torch.inf).sort(1).values
            same = levels.shape[1] - torch.searchsorted(ascending, levels)
        others = soft_counts(matrix, levels, negatives, _Bound(self.temperature, self.rho, self.delta))
        count = present.sum(1)
        average_precision = (present * same / (same + others).clamp_min(1)).sum(1) / count.clamp_min(1)
        pull = (positives * relu(self.alpha - matrix)).sum(1) / count.clamp_min(1)
        push = (negatives * relu(matrix - self.beta)).sum(1) / negatives.sum(1).clamp_min(1)
        losses = (1 - self.weight) * (1 - average_precision) + self.weight * (pull + push)
        return mean_over(losses, (count > 0).to(matrix.dtype))


class _Bound:
    """H-."""

    def __init__(self, temperature: float, rho: float, delta: float) -> None:
        self.sigmoid = SigmoidStep(temperature)
        self.rho = rho
        self.delta = delta

    def value(self, x: Tensor) -> Tensor:
        beyond = relu(x - self.delta) * self.rho + 0.5 * (x > 0)
        return self.sigmoid.value(x.clamp(max=self.delta)).add_(beyond)

    def slope(self, x: Tensor) -> Tensor:
        return self.sigmoid.slope(x.clamp(max=self.delta)).where(x <= self.delta, self.rho)
