"""Lifted structure loss."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import relu

from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import EMPTY, ROW_VALUES, PairLoss, mean_over, pair_weights, weighted_logsumexp


class LiftedStructureLoss(PairLoss):
    """Compares each positive pair with the negatives of both its samples.

        L = mean_{(i,p)} 1/2 [ J_ip + d_ip - m_pos ]+^2
        J_ip = log( sum_{n in N(i)} e^(m_neg - d_in) + sum_{n in N(p)} e^(m_neg - d_pn) )

    d is the distance of unit vectors, in [0, 2]. With `ref_emb`, N(p) are the references of another class than p, and
    d_pn is a distance between references. A pair without negatives at either sample gives 0.

    Args:
        neg_margin: m_neg.
        pos_margin: m_pos.
        normalize: False uses the embeddings without normalisation, as Fehervari et al. do.

    Cost: B^2. When: comparison with older work.
    Papers: Oh Song et al. 2016, arXiv:1511.06452; this form Musgrave et al. 2020, arXiv:2003.08505; Fehervari et al.
    2019, arXiv:1911.12528 (Eq 2).
    """

    search_space = {
        "neg_margin": {"start": 1.0, "low": 0.0, "high": 2.0, "scale": "linear"},
        "pos_margin": {"start": 0.0, "low": 0.0, "high": 1.0, "scale": "linear"},
    }

    def __init__(self, neg_margin: float = 1.0, pos_margin: float = 0.0, normalize: bool = True) -> None:
        super().__init__(normalize)
        self.neg_margin = neg_margin
        self.pos_margin = pos_margin

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        positives, negatives = pair_weights(labels, indices_tuple, ref_labels, dtype=embeddings.dtype)
        anchors, others = self.points(embeddings, ref_emb)
        dist_NM = self.distances(anchors, others)
        of_anchor = self._pushes(dist_NM, negatives)
        of_positive = of_anchor
        if ref_emb is not None and ref_labels is not None:
            of_positive = self._pushes_of_references(positives, others, ref_labels)
        hinge = relu(of_anchor[:, None].logaddexp(of_positive[None, :]) + dist_NM - self.pos_margin)
        return mean_over(hinge.square() / 2, positives)

    def _pushes_of_references(
        self, positives: Float[Tensor, "N M"], others: Float[Tensor, "M D"], ref_labels: Int[Tensor, " M"]
    ) -> Float[Tensor, " M"]:
        """`_pushes` of each reference that is a positive of an anchor, in blocks of rows of 64 MiB."""
        (needed,) = positives.any(0).nonzero(as_tuple=True)
        of_positive = others.new_full((len(others),), EMPTY)
        for rows in needed.split(max(32, ROW_VALUES // len(others))):
            apart = (ref_labels[rows, None] != ref_labels).to(others.dtype)
            of_positive = of_positive.index_put((rows,), self._pushes(self.distances(others[rows], others), apart))
        return of_positive

    def _pushes(self, dist: Float[Tensor, "N M"], negatives: Float[Tensor, "N M"]) -> Float[Tensor, " N"]:
        return weighted_logsumexp(self.neg_margin - dist, negatives)
