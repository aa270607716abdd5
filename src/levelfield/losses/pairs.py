"""The base class of the losses of pairs: pair matrices, which pairs count, and means over them.

N embeddings, M references (the embeddings themselves unless `ref_emb` is given), D dimensions.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, no_grad
from torch.nn.functional import threshold

from levelfield.core.labels import LabelSets, matches
from levelfield.core.numerics import inner_products, rounding_of, unit
from levelfield.losses.base import Choice, IndicesTuple, Labels, MetricLoss, PairMasks, Points, RefLabels, RefPoints

# One number for each pair.
Pairs = Float[Tensor, "N M"]
# The log-sum-exp of an empty row; finite, so that the row has a zero gradient.
EMPTY = -1e30
# Values in memory at a time, where a loss computes a matrix larger than the batch's in blocks of rows.
ROW_VALUES = 2**24
# The same on a CPU, where a block should fit its cache.
CACHED_VALUES = 2**18


def cosines(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Inner products: cosines when both are unit vectors."""
    return inner_products(anchors, others)


def squared_distances(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Squared Euclidean distances; rounding may make them negative."""
    products = inner_products(-2 * anchors, others)
    return products.add_(anchors.square().sum(1, keepdim=True)).add_(others.square().sum(1))


def distances(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Euclidean distances at any scale; exactly 0, with a zero gradient, where rounding hides the distance."""
    squares = squared_distances(anchors, others)
    with no_grad():
        norms = anchors.square().sum(1, keepdim=True) + others.square().sum(1)
        hidden = squares <= norms.mul_(rounding_of(anchors) / 2)
    return safe_sqrt(squares.masked_fill(hidden, 0.0))


def unit_distances(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Distances of unit vectors, in [0, 2]; exactly 0, with a zero gradient, between those that coincide."""
    return _UnitDistances.apply(anchors, None if others is anchors else others)


class _UnitDistances(torch.autograd.Function):
    """Without `others` the distances among the anchors.

    The gradient lacks the part along each vector: a unit vector does not change along itself.
    """

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, others: Tensor | None) -> Tensor:
        products = inner_products(anchors, anchors if others is None else others)
        rows = products.diagonal().clone() if others is None else anchors.square().sum(1)
        squares = torch.sub(rows[:, None], products, alpha=2, out=products)
        squares.add_(rows if others is None else others.square().sum(1))
        roots = threshold(squares, rounding_of(anchors), 0.0, inplace=True).sqrt_()
        ctx.save_for_backward(anchors, others, roots)
        return roots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        anchors, others, roots = ctx.saved_tensors
        slopes = gradient / threshold(roots, 0.0, torch.inf)
        of_others = inner_products(slopes.mT, anchors.mT)
        if others is None:
            return -(inner_products(slopes, anchors.mT) + of_others), None
        return -inner_products(slopes, others.mT), -of_others


def safe_sqrt(squares: Tensor, floor: float = 1e-24) -> Tensor:
    """Square root; 0 at `floor` and below, where the gradient is 0, not infinite."""
    return _SafeSqrt.apply(squares, floor)


class _SafeSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, squares: Tensor, floor: float) -> Tensor:
        roots = threshold(squares, floor, 0.0).sqrt_()
        ctx.save_for_backward(roots)
        return roots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (roots,) = ctx.saved_tensors
        return gradient / threshold(2 * roots, 0.0, torch.inf, inplace=True), None


class PairLoss(MetricLoss):
    """A loss of one number for each pair; subclasses write `pair_loss`.

    `matrix` chooses the number: `staticmethod(cosines)`, the default, or `staticmethod(unit_distances)`. With
    `normalize=False` (then `distances`) the embeddings are not normalised. With `count_repeats` a pair that a miner
    names twice counts twice.
    """

    matrix = staticmethod(cosines)
    count_repeats = True

    def __init__(self, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = normalize

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Float[Tensor, ""]:
        positives_NM, negatives_NM = pair_weights(
            labels, indices_tuple, ref_labels, dtype=embeddings.dtype, count_repeats=self.count_repeats
        )
        anchors_ND, others_MD = self.points(embeddings, ref_emb)
        return self.pair_loss(self.matrix(anchors_ND, others_MD), positives_NM, negatives_NM)

    def points(self, embeddings: Points, ref_emb: RefPoints) -> tuple[Points, Float[Tensor, "M D"]]:
        """Anchors and references, normalised unless `normalize=False`."""
        anchors = unit(embeddings) if self.normalize else embeddings
        if ref_emb is None:
            return anchors, anchors
        return anchors, unit(ref_emb) if self.normalize else ref_emb

    def distances(self, anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
        """Euclidean distances of what `points` returns."""
        return (unit_distances if self.normalize else distances)(anchors, others)

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Float[Tensor, ""]:
        """The loss from `matrix` and, for each pair, how often it counts as a positive and as a negative (0 or 1)."""
        raise NotImplementedError


@no_grad()
def pair_weights(
    labels: Labels | LabelSets,
    indices_tuple: Choice,
    ref_labels: RefLabels,
    dtype: torch.dtype,
    count_repeats: bool = True,
) -> tuple[Pairs, Pairs]:
    """How often each pair counts as a positive and as a negative: 0 or 1, more where a miner names it more often."""
    if indices_tuple is None:
        own = labels if ref_labels is None else ref_labels
        same = labels[:, None] == own if labels.ndim == 1 else matches(labels, ref_labels)
        positives = same.to(dtype)
        negatives = 1 - positives
        return (positives.fill_diagonal_(0) if ref_labels is None else positives), negatives
    if isinstance(indices_tuple, PairMasks):
        return indices_tuple.positives.to(dtype), indices_tuple.negatives.to(dtype)
    a1, p, a2, n = as_pairs(indices_tuple)
    others, weights = labels if ref_labels is None else ref_labels, []
    for rows, columns in ((a1, p), (a2, n)):
        counts = torch.zeros(len(labels), len(others), dtype=dtype, device=labels.device)
        ones = torch.ones(len(rows), dtype=dtype, device=labels.device)
        weights.append(counts.index_put_((rows, columns), ones, accumulate=count_repeats))
    return weights[0], weights[1]


def as_pairs(indices_tuple: IndicesTuple) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(a1, p, a2, n) of pairs, of masks, or of the two pairs of each triplet (a, p, n)."""
    if isinstance(indices_tuple, PairMasks):
        a1, p = indices_tuple.positives.nonzero(as_tuple=True)
        a2, n = indices_tuple.negatives.nonzero(as_tuple=True)
        return a1, p, a2, n
    if len(indices_tuple) == 3:
        a, p, n = indices_tuple
        return a, p, a, n
    a1, p, a2, n = indices_tuple
    return a1, p, a2, n


def weighted_logsumexp(logits: Float[Tensor, "*B N M"], weights: Float[Tensor, "*B N M"]) -> Float[Tensor, "*B N"]:
    """log sum_j w_ij e^(z_ij) of each row; `EMPTY`, with a zero gradient, where a row's weights are all 0.

    Weights are 0 or at least 1; several matrices of them may share the logits. Exact for logits of any size: each row
    is shifted by its largest logit that counts.
    """
    return _WeightedLogSumExp.apply(logits, (1.0,), weights)[0]


def pull_and_push_logsumexp(
    logits: Pairs, positives: Pairs, negatives: Pairs, pull: float = 1.0, push: float = 1.0
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """`weighted_logsumexp` of `pull` times the logits over positives, and of `push` times the logits over negatives."""
    pulls, pushes = _WeightedLogSumExp.apply(logits, (pull, push), positives, negatives)[0]
    return pulls, pushes


def weighted_softmax(logits: Float[Tensor, "N M"], weights: Float[Tensor, "N M"]) -> Float[Tensor, "N M"]:
    """w_ij e^(z_ij) over its sum along each row; 0, with a zero gradient, where a row's weights are all 0."""
    return _WeightedLogSumExp.apply(logits, (1.0,), weights)[1]


class _WeightedLogSumExp(torch.autograd.Function):
    """Log-sum-exps of multiples of the logits, each with its weights, stacked if several; then the softmax of each.

    The derivatives use the softmax, so they can be differentiated again. Each has one buffer, and no exponential below
    e^-80: these do not change the sum and are slow on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, scales: tuple[float, ...], *weights: Tensor) -> tuple[Tensor, ...]:
        several, every_terms = len(weights) > 1, []
        shape = (len(weights),) * several + (*weights[0].shape[:-1], 1)
        largest, totals = logits.new_empty(shape), logits.new_empty(shape)
        tops, sums = (each.unbind() if several else (each,) for each in (largest, totals))
        for scale, counts, top, total in zip(scales, weights, tops, sums, strict=True):
            terms = counts.clamp_max(1).sub_(1)
            if scale == 1:
                torch.add(logits, terms, alpha=-EMPTY, out=terms)
            else:
                terms.mul_(-EMPTY).add_(logits, alpha=scale)
            terms.sub_(torch.amax(terms, -1, keepdim=True, out=top)).clamp_(min=-80).exp_().mul_(counts)
            torch.sum(terms, -1, keepdim=True, out=total)
            every_terms.append(terms)
        totals.clamp_min_(1)  # only a row whose weights are all 0 has less
        for terms, total in zip(every_terms, sums, strict=True):
            terms.div_(total)
        ctx.scales, ctx.shape = scales, logits.shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*every_terms)
        return largest.add_(totals.log_()).squeeze(-1), *every_terms

    @staticmethod
    def backward(ctx: Any, of_found: Tensor | None, *of_softmax: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient = None
        for k, (shares, of_shares) in enumerate(zip(ctx.saved_tensors, of_softmax, strict=True)):
            slopes = of_found[k] if of_found is not None and len(ctx.scales) > 1 else of_found
            slopes = None if slopes is None else slopes[..., None]
            if of_shares is not None:
                of_shares = of_shares - (of_shares * shares).sum(-1, keepdim=True)
                slopes = of_shares if slopes is None else slopes + of_shares
            if slopes is not None:
                slopes = slopes if ctx.scales[k] == 1 else ctx.scales[k] * slopes
                gradient = shares * slopes if gradient is None else torch.addcmul(gradient, shares, slopes)
        return None if gradient is None else gradient.sum_to_size(ctx.shape), None, *(None for _ in of_softmax)


def pull_and_push(
    matrix: Pairs, positives: Pairs, negatives: Pairs, pos_margin: float, neg_margin: float
) -> Float[Tensor, ""]:
    """NZ_{(i,p)} [x_ip - m_pos]+  +  NZ_{(i,n)} [m_neg - x_in]+, NZ the mean over the terms above 0."""
    return _PullAndPush.apply(matrix, positives, negatives, pos_margin, neg_margin)


class _PullAndPush(torch.autograd.Function):
    """`pull_and_push` with three buffers of N x M; autograd takes nine, and allocating them takes most of the time."""

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, positives: Tensor, negatives: Tensor, pos_margin: float, neg_margin: float
    ) -> Tensor:
        totals, numbers = matrix.new_empty(2, 2)
        saved = []
        for k, (violations, weights) in enumerate(((matrix - pos_margin, positives), (neg_margin - matrix, negatives))):
            torch.sum(violations.clamp_min_(0).mul_(weights), (0, 1), out=totals[k])
            active = violations.sign_().mul_(weights)  # how often each term above 0 counts
            torch.sum(active, (0, 1), out=numbers[k])
            saved.append(active)
        ctx.save_for_backward(*saved, numbers.clamp_min_(1))
        return (totals / numbers).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        pulled, pushed, numbers = ctx.saved_tensors
        of_pulled, of_pushed = gradient / numbers
        return (pulled * of_pulled).addcmul_(pushed, of_pushed, value=-1), None, None, None, None


def nonzero_mean(terms: Tensor, weights: Tensor) -> Float[Tensor, ""]:
    """Weighted mean over the terms above 0; 0 if there are none. No term may be below 0."""
    with no_grad():
        active = (weights * terms.sign()).sum()
    return (weights * terms).sum() / active.clamp_min(1)


def mean_over(terms: Tensor, weights: Tensor) -> Float[Tensor, ""]:
    """Weighted mean over all terms; 0 if the weights are all 0."""
    return (weights * terms).sum() / threshold(weights.sum(), 0.0, 1.0)
