"""PNP loss."""

from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from levelfield.losses.base import Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, mean_over
from levelfield.losses.soft_ranks import SigmoidStep, levels_of_positives, soft_counts

Variant = Literal["O", "Ds", "Dq", "Iu", "Ib"]


class PNPLoss(PairLoss):
    """Counts, by sigmoids, the negatives that rank before each positive of an anchor.

        L = mean_{i with P(i)} (1/#P(i)) sum_{p in P(i)} f(R_ip)
        R_ip = sum_{n in N(i)} 1 / (1 + e^(-(s_in - s_ip)/T))
        f(R) = R (O)    log(1 + R) (Ds)    1 - 1/(1 + R)^alpha (Dq)
        f(R) = (1 + R) log(1 + R) - R (Iu)    R/b - log(1 + b R)/b^2 (Ib)

    s is the cosine. f' falls with R for Ds and Dq, which ignore far positives, and rises for Iu and Ib. Iu is the
    integral of its f' = log(1 + R); the authors' code lacks the - R. The anchor is not in its own ranking. The authors'
    code counts it as a positive; `ref_emb=embeddings` does so too.

    Args:
        b: of Ib, above 0.
        alpha: of Dq, above 0.
        anneal: T, above 0.
        variant: which f.

    Cost: pairs x B, computed some rows at a time. When: classes of several clusters (Dq); large batches.
    Paper: Li et al. 2022, "Rethinking the Optimization of Average Precision: Only Penalizing Negative Instances before
    Positive Ones is Enough", arXiv:2102.04640.

    Not for `torch.compile(fullgraph=True)`: the largest number of positives of an anchor sets the shapes.
    """

    count_repeats = False

    def __init__(self, b: float = 2.0, alpha: float = 1.0, anneal: float = 0.01, variant: Variant = "O") -> None:
        super().__init__()
        check_above_0(b=b, alpha=alpha, anneal=anneal)
        if variant not in get_args(Variant):
            raise ValueError(f"variant={variant!r} must be one of {', '.join(get_args(Variant))}")
        self.b = b
        self.alpha = alpha
        self.anneal = anneal
        self.variant = variant

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        levels, present = levels_of_positives(matrix, positives)
        penalties = self._penalty(soft_counts(matrix, levels, negatives, SigmoidStep(self.anneal)))
        count = present.sum(1)
        return mean_over((present * penalties).sum(1) / count.clamp_min(1), (count > 0).to(matrix.dtype))

    def _penalty(self, before: Float[Tensor, "N P"]) -> Float[Tensor, "N P"]:
        """f of the number of negatives before a positive."""
        if self.variant == "Ds":
            return before.log1p()
        if self.variant == "Dq":
            return 1 - (1 + before) ** -self.alpha
        if self.variant == "Iu":
            return (1 + before) * before.log1p() - before
        if self.variant == "Ib":
            return before / self.b - (self.b * before).log1p() / self.b**2
        return before
