"""Meta-class loss, DREML's."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, sample_weights
from levelfield.losses.classification import checked_classes, where_known
from levelfield.numerics import unit


class MetaClassLoss(MetricLoss):
    """Each member of an ensemble tells meta-classes apart: a grouping of the classes of its own, drawn at random.

        L = sum_l mean_i CE( -k norm(u_il - e_c)^2, m_l(y_i) ),   c = 1..D

    u_il is the unit vector of member l's D numbers in embedding i; e_c, the c-th unit vector, is the fixed proxy of
    meta-class c; m_l is a random map of the classes onto D meta-classes of equal size, give or take one. Members share
    nothing but the batch: training them side by side is training them apart. With (N, L D) embeddings and (N,) labels
    in 0..num_classes-1 it gives a scalar.

    Args:
        num_classes: C.
        embedding_size: L D; D, the numbers of a member and its meta-classes, is what L leaves.
        members: L.
        softmax_scale: k, above 0. The authors' code leaves a member's numbers at their length, which takes the place of
            k; unit vectors give each member the same say in the distance.

    The maps are drawn from torch's global generator when the loss is made and are part of its state. With a miner, each
    sample weighs as often as `indices_tuple` names it (`ClassificationLoss`); `ref_emb` raises ValueError.

    Cost: B L D. When: DREML, with `--model.members` (docs/trunks.md).
    Paper: Xuan et al. 2018, "Deep Randomized Ensembles for Metric Learning", arXiv:1808.04469 (12 x 12: Fehervari et
    al. 2019).
    """

    meta_classes: Tensor

    def __init__(self, num_classes: int, embedding_size: int, members: int = 12, softmax_scale: float = 10.0) -> None:
        super().__init__()
        if members < 1 or num_classes < 1 or embedding_size < 1 or embedding_size % members:
            raise ValueError(
                f"embedding_size={embedding_size} must be a multiple of members={members}, and they and "
                f"num_classes={num_classes} at least 1"
            )
        if softmax_scale <= 0:
            raise ValueError(f"softmax_scale={softmax_scale} must be above 0")
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.members = members
        self.softmax_scale = softmax_scale
        in_turn = torch.arange(num_classes) % (embedding_size // members)
        maps_LC = torch.stack([in_turn[torch.randperm(num_classes)] for _ in range(members)])
        self.register_buffer("meta_classes", maps_LC)

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Float[Tensor, ""]:
        if ref_emb is not None:
            raise ValueError("MetaClassLoss compares with meta-classes and takes no ref_emb")
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"embeddings have {embeddings.shape[1]} dimensions but the loss was made with "
                f"embedding_size={self.embedding_size}"
            )
        labels, in_range = checked_classes(labels, self.num_classes)
        cosines_NLD = unit(embeddings.unflatten(1, (self.members, -1)))
        logits_NLD = -self.softmax_scale * (2 - 2 * cosines_NLD)
        losses_NL = cross_entropy(logits_NLD.transpose(1, 2), self.meta_classes[:, labels].T, reduction="none")
        losses_N = losses_NL.sum(dim=1)
        return where_known(in_range, (losses_N * sample_weights(embeddings, indices_tuple)).mean())
