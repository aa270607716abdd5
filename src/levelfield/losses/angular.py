"""Angular loss."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import EMPTY, ROW_VALUES, PairLoss, cosines, mean_over, pair_weights


class AngularLoss(PairLoss):
    """Keeps the angle at the negative, in its triangle with a positive pair, below a bound.

        L = mean_{(i,p)} log( 1 + sum_{n in N(i)} e^f_ipn )
        f_ipn = 4 tan^2(alpha) (u_i + u_p).u_n - 2 (1 + tan^2(alpha)) u_i.u_p

    u are unit vectors. N(i) are all samples of another class. A miner chooses only the positive pairs.

    Args:
        alpha: the bound, in degrees, in (0, 90).
        normalize: False uses the embeddings without normalisation, as Fehervari et al. do (Eq 4, 5).

    Cost: pairs x B, computed in pieces of at most 64 MiB. When: a margin that does not depend on scale.
    Paper: Wang et al. 2017, "Deep Metric Learning with Angular Loss", arXiv:1708.01682.

    Not for `torch.compile(fullgraph=True)`: the number of positive pairs sets the shapes.
    """

    search_space = {"alpha": {"start": 40.0, "low": 5.0, "high": 85.0, "scale": "linear"}}

    def __init__(self, alpha: float = 40.0, normalize: bool = True) -> None:
        super().__init__(normalize)
        if not 0 < alpha < 90:
            raise ValueError(f"alpha={alpha} is an angle in degrees and must lie in (0, 90)")
        self.alpha = alpha

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        positives, negatives = pair_weights(labels, None, ref_labels, dtype=embeddings.dtype)
        if indices_tuple is not None:
            positives, chosen = pair_weights(labels, indices_tuple, ref_labels, dtype=embeddings.dtype)
            positives = positives * chosen.any()
        elif ref_emb is None:
            positives = positives.triu()  # (i, p) and (p, i) are the same term
        anchors, others = self.points(embeddings, ref_emb)
        dots_NM = cosines(anchors, others)
        tan2 = math.tan(math.radians(self.alpha)) ** 2
        i, p = positives.nonzero(as_tuple=True)
        hidden_NM = (negatives - 1) * -EMPTY  # about minus infinity where n is no negative
        of_anchors_NM = 4 * tan2 * dots_NM + hidden_NM
        of_positives_MM = 4 * tan2 * dots_NM if ref_emb is None else None

        def sums_of(i: Int[Tensor, " K"], p: Int[Tensor, " K"]) -> Float[Tensor, " K"]:
            """log sum_n e^(4 tan^2(alpha) (u_i + u_p).u_n); the term of u_i.u_p does not depend on n."""
            if of_positives_MM is not None:
                return (of_anchors_NM.index_select(0, i) + of_positives_MM.index_select(0, p)).logsumexp(1)
            between_KM = cosines(others.index_select(0, p), others)  # with references: only these rows are in memory
            return (of_anchors_NM.index_select(0, i) + 4 * tan2 * between_KM).logsumexp(1)

        parts = list(zip(*(pairs.split(max(32, ROW_VALUES // len(others))) for pairs in (i, p)), strict=True))
        if len(parts) == 1:
            sums_K = sums_of(i, p)
        else:  # recomputed in the backward pass
            sums_K = torch.cat(
                [checkpoint(sums_of, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
            )
        return mean_over(softplus(sums_K - 2 * (1 + tan2) * dots_NM[i, p]), positives[i, p])
