"""Angular loss."""

import math

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from levelfield.losses.base import IndicesTuple
from levelfield.losses.pairs import PairLoss, cosines, pair_weights
from levelfield.losses.triplets import positive_pairs


class AngularLoss(PairLoss):
    """The angle at the negative of the triangle that it makes with a positive pair, bounded from above.

        L = mean_{(i,p)} log( 1 + sum_{n in N(i)} e^f_ipn )
        f_ipn = 4 tan^2(alpha) (u_i + u_p).u_n - 2 (1 + tan^2(alpha)) u_i.u_p

    u are unit vectors. N(i) are all samples of another class; a miner chooses the positive pairs alone. With (N, D)
    embeddings and (N,) labels it gives a scalar.

    Args:
        alpha: the bound, in degrees, in (0, 90).
        normalize: False takes the embeddings as they come, as Fehervari et al. do (Eq 4, 5).

    Cost: pairs x B, also in memory. When: margins that do not depend on scale.
    Paper: Wang et al. 2017, "Deep Metric Learning with Angular Loss", arXiv:1708.01682.

    Not for `torch.compile(fullgraph=True)`: the number of positive pairs sets the shapes.
    """

    def __init__(self, alpha: float = 40.0, normalize: bool = True) -> None:
        super().__init__(normalize)
        if not 0 < alpha < 90:
            raise ValueError(f"alpha={alpha} is an angle in degrees and must lie in (0, 90)")
        self.alpha = alpha

    def compute(
        self,
        embeddings: Float[Tensor, "N D"],
        labels: Int[Tensor, " N"],
        indices_tuple: IndicesTuple | None,
        ref_emb: Float[Tensor, "M D"] | None,
        ref_labels: Int[Tensor, " M"] | None,
    ) -> Float[Tensor, ""]:
        positives, negatives = pair_weights(labels, None, ref_labels, dtype=embeddings.dtype)
        if indices_tuple is not None:
            positives, chosen = pair_weights(labels, indices_tuple, ref_labels, dtype=embeddings.dtype)
            positives = positives * chosen.any()
        elif ref_emb is None:
            positives = positives.triu()  # (i, p) and (p, i) are the same term
        i, p = positive_pairs(positives)
        if len(i) == 0:
            return embeddings.new_zeros(())
        anchors, others = self.points(embeddings, ref_emb)
        dots_NM = cosines(anchors, others)
        dots_MM = dots_NM if ref_emb is None else cosines(others, others)
        tan2 = math.tan(math.radians(self.alpha)) ** 2
        hidden_NM = (negatives - 1) * 1e30  # minus infinity, nearly, where n is of the class
        # (u_i + u_p).u_n from rows of the matrices; the term of u_i.u_p does not depend on n
        triangles_KM = (4 * tan2 * dots_NM + hidden_NM).index_select(0, i) + (4 * tan2 * dots_MM).index_select(0, p)
        return softplus(triangles_KM.logsumexp(1) - 2 * (1 + tan2) * dots_NM[i, p]).mean()
