"""Margin loss."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn, no_grad
from torch.nn.functional import relu

from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.classification import checked_classes, where_known
from levelfield.losses.pairs import PairLoss, pair_weights, unit_distances
from levelfield.losses.triplets import random_triplets


class MarginLoss(PairLoss):
    """Positives must be within a boundary and negatives beyond it; the boundary may be learnt.

        L = sum_{(i,p,n)} ( [d_ip - b + m]+ + [b - d_in + m]+ ) / (active positive and negative terms)  + nu b

    d is the distance of unit vectors, in [0, 2]. Sum and count run over triplets, so a positive pair weighs #N(i) and a
    negative pair #P(i). The term nu b is present if b is learnt. With one b for each class it is sum_{(i,p,n)} nu
    b_{y_i} with the same divisor.

    Args:
        margin: m.
        nu: weight of the regulariser.
        beta: b, or the start of each b.
        triplets_per_anchor: "all", or a number of random ones (torch's global generator). A miner overrides it.
        learn_beta: b is a parameter; give it its own learning rate and no weight decay.
        num_classes: one b for each class, that of the anchor; labels are then 0..num_classes-1.
        beta_per_class: the same, with the number set later by `set_num_classes`.
        pairs: sum and count over pairs, each once (Vasilev & D'yakonov, Eq 4), instead of triplets.

    Cost: B^2. When: a learnt boundary; with `DistanceWeightedMiner`.
    Papers: Wu et al. 2017, "Sampling Matters in Deep Embedding Learning", arXiv:1706.07567; this form Musgrave et al.
    2020, arXiv:2003.08505.
    """

    def __init__(
        self,
        margin: float = 0.2,
        nu: float = 0.0,
        beta: float = 1.2,
        triplets_per_anchor: int | Literal["all"] = "all",
        learn_beta: bool = False,
        num_classes: int | None = None,
        beta_per_class: bool = False,
        pairs: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(triplets_per_anchor, str) and triplets_per_anchor != "all":
            raise ValueError(f"triplets_per_anchor={triplets_per_anchor!r} must be 'all' or a number")
        if pairs and triplets_per_anchor != "all":
            raise ValueError("pairs=True goes over all pairs; leave triplets_per_anchor at 'all'")
        self.margin = margin
        self.nu = nu
        self.initial_beta = float(beta)
        self.triplets_per_anchor = triplets_per_anchor
        self.learn_beta = learn_beta
        self.beta_per_class = beta_per_class or num_classes is not None
        self.pairs = pairs
        self.beta: nn.Parameter | float = self.initial_beta
        if learn_beta:
            self.beta = nn.Parameter(torch.full((num_classes or 1,), self.initial_beta))

    def set_num_classes(self, num_classes: int) -> None:
        """With `beta_per_class`, make one learnt b for each class, unless they exist already."""
        if isinstance(self.beta, nn.Parameter) and self.beta_per_class and len(self.beta) != num_classes:
            self.beta = nn.Parameter(torch.full((num_classes,), self.initial_beta))

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        positives, negatives = pair_weights(labels, indices_tuple, ref_labels, dtype=embeddings.dtype)
        listed = indices_tuple
        if listed is None and isinstance(self.triplets_per_anchor, int):
            listed, counts = random_triplets(positives, negatives, self.triplets_per_anchor)
            positives, negatives = (
                torch.zeros_like(positives).index_put_((listed[0], others), counts, accumulate=True)
                for others in listed[1:]
            )
        terms_N = positives.sum(1) + negatives.sum(1)
        if not self.pairs:
            terms_N = positives.sum(1)
            if listed is None or len(listed) != 3:
                terms_N = positives.sum(1) * negatives.sum(1)
                positives, negatives = (
                    positives * negatives.sum(1, keepdim=True),
                    negatives * positives.sum(1, keepdim=True),
                )
        beta_N, unknown = self._beta_of(labels, embeddings.dtype)
        dist_NM = unit_distances(*self.points(embeddings, ref_emb))
        pull = relu(dist_NM - (beta_N - self.margin)[:, None])
        push = relu((beta_N + self.margin)[:, None] - dist_NM)
        with no_grad():
            active = (positives * pull.sign()).sum() + (negatives * push.sign()).sum()
            number = torch.where(active > 0, active, 1.0)
        loss = ((positives * pull).sum() + (negatives * push).sum()) / number
        if self.learn_beta and self.nu:
            if self.beta_per_class:
                loss = loss + self.nu * (terms_N * beta_N).sum() * (active > 0) / number
            else:
                loss = loss + self.nu * beta_N.mean() * terms_N.any()
        return where_known(unknown, loss)

    def _beta_of(self, labels: Int[Tensor, " N"], dtype: torch.dtype) -> tuple[Float[Tensor, " N"], Tensor | None]:
        """Each anchor's b, and the second value of `checked_classes`."""
        if isinstance(self.beta, nn.Parameter):
            beta = self.beta.to(dtype).reshape(-1)
        else:  # created on the device, not copied to it
            beta = torch.full((1,), self.beta, dtype=dtype, device=labels.device)
        if (len(beta) == 1 and not self.beta_per_class) or not self.learn_beta:
            return beta.expand(len(labels)), None
        classes, unknown = checked_classes(labels, len(beta))
        return beta[classes], unknown
