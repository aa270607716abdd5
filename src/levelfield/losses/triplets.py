"""Triplets (i, p, n) without a table of them: lists of positives, and counts of the triplets that violate a margin.

N anchors, M others, K positive pairs, P the largest number of positives of an anchor.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, no_grad

from levelfield.core.numerics import inner_products
from levelfield.losses.base import IndicesTuple, Scalar, can_look
from levelfield.losses.pairs import Pairs

# On a GPU up to this many entries are sorted in full: reading P back would take longer than the rest of the loss.
SORTED_WHOLE = 2**22
# On a CPU up to this many triplets are compared one by one, with fewer operations than sorting the distances.
COMPARED = 2**16


@no_grad()
def positive_pairs(positives: Pairs) -> tuple[Int[Tensor, " K"], Int[Tensor, " K"]]:
    """(anchor, positive) of each positive pair, repeated as often as it counts, ordered by anchor."""
    anchors, others = positives.nonzero(as_tuple=True)
    repeats = positives[anchors, others].long()
    return anchors.repeat_interleave(repeats), others.repeat_interleave(repeats)


@no_grad()
def padded_positives(positives: Pairs, once: bool = False) -> tuple[Int[Tensor, "N P"], Bool[Tensor, "N P"]]:
    """Each anchor's positives in a row, padded, and a mask of the real entries.

    `once` says that no pair counts twice. Then a GPU does not synchronise to learn P: a row has all M others.
    """
    if once and not can_look(positives) and positives.numel() <= SORTED_WHOLE:
        columns = (positives == 0).to(torch.uint8).sort(dim=1, stable=True).indices
        return columns, torch.arange(columns.shape[1], device=columns.device) < positives.sum(1, keepdim=True)
    anchors, others = positive_pairs(positives)
    counts = torch.bincount(anchors, minlength=len(positives))
    rank = torch.arange(len(anchors), device=positives.device) - (counts.cumsum(0) - counts)[anchors]
    columns = torch.zeros(len(positives), int(counts.max()), dtype=torch.long, device=positives.device)
    columns[anchors, rank] = others
    present = torch.arange(columns.shape[1], device=positives.device) < counts[:, None]
    return columns, present


def mean_of_active(dist: Pairs, positives: Pairs, negatives: Pairs, margin: float, once: bool) -> Scalar:
    """NZ_{(i,p,n)} [d_ip - d_in + m]+, NZ the mean over the terms above 0. `once` says that no pair counts twice."""
    return _MeanOfActive.apply(dist, positives, negatives, margin, once)


class _MeanOfActive(torch.autograd.Function):
    """Counts the active triplets of each pair: with these counts the hinge is linear in the distances."""

    @staticmethod
    def forward(ctx: Any, dist: Tensor, positives: Tensor, negatives: Tensor, margin: float, once: bool) -> Tensor:
        by_sorting = once and not can_look(dist) and dist.numel() <= SORTED_WHOLE
        keys = dist.new_empty(1 + by_sorting, *dist.shape)
        beyond = negatives if once else negatives.clamp_max(1)
        shifted = torch.sub(dist, beyond, alpha=margin, out=keys[-1])  # a triplet is active if p's exceeds n's
        if by_sorting:
            slopes, active = sort_both(keys, positives, negatives)
        elif can_look(dist) and dist.numel() * dist.shape[1] <= COMPARED:
            slopes, active = compare_all(shifted, positives, negatives)
        else:
            slopes, active = sort_positives(shifted, positives, negatives)
        slopes.div_(active.clamp_min_(1))
        ctx.save_for_backward(slopes)
        return shifted.mul_(slopes).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.saved_tensors[0] * gradient, None, None, None, None


# Each of these returns in how many active triplets a pair is, with a minus for a negative pair, and their number.
def sort_both(keys: Float[Tensor, "2 N M"], positives: Pairs, negatives: Pairs) -> tuple[Pairs, Scalar]:
    """By sorting positives and negatives in full: no shape depends on values. `keys[0]` is overwritten."""
    torch.neg(keys[1], out=keys[0])
    ranked = keys.masked_fill(torch.stack([positives, negatives]) == 0, torch.inf).sort(-1).values
    below = torch.searchsorted(ranked, keys)
    slopes = positives * below[1]
    active = slopes.sum()
    return slopes.addcmul_(negatives, below[0], value=-1), active


def sort_positives(shifted: Pairs, positives: Pairs, negatives: Pairs) -> tuple[Pairs, Scalar]:
    """By sorting an anchor's P positives and looking up where each negative falls among them: N M log P, not N P M."""
    columns, present = padded_positives(positives)
    near, order = shifted.gather(1, columns).masked_fill_(~present, torch.inf).sort(1)
    passed = torch.searchsorted(near, shifted, right=True)
    slopes = negatives * (passed - present.sum(1, keepdim=True))
    histogram = near.new_zeros(len(near), near.shape[1] + 1).scatter_add_(1, passed, negatives)
    per_positive = torch.zeros_like(near).scatter_(1, order, histogram.cumsum(1)[:, :-1]) * present
    return slopes.scatter_add_(1, columns, per_positive), per_positive.sum()


def compare_all(shifted: Pairs, positives: Pairs, negatives: Pairs) -> tuple[Pairs, Scalar]:
    """By a table of all triplets, with the positives in their own columns."""
    violated = (shifted[:, :, None] > shifted[:, None, :]).to(shifted.dtype)
    per_positive = positives * inner_products(violated, negatives[:, None])[:, :, 0]
    per_negative = negatives * inner_products(positives[:, None], violated.mT)[:, 0]
    return per_positive - per_negative, per_positive.sum()


@no_grad()
def random_triplets(positives: Pairs, negatives: Pairs, triplets_per_anchor: int) -> tuple[IndicesTuple, Tensor]:
    """For each anchor, random positives and random negatives, with replacement, and how often each triplet counts.

    Drawn from torch's global generator. On a GPU, anchors without positives or negatives have triplets of count 0.
    """
    usable = (positives.sum(1) > 0) & (negatives.sum(1) > 0)
    if not can_look(positives):
        p, n = (draw_evenly(weights, triplets_per_anchor).flatten() for weights in (positives, negatives))
        a = torch.arange(len(usable), device=usable.device).repeat_interleave(triplets_per_anchor)
        return (a, p, n), usable.to(positives.dtype).repeat_interleave(triplets_per_anchor)
    anchors = usable.nonzero().squeeze(1)
    if len(anchors) == 0:
        return (anchors, anchors, anchors), positives.new_zeros(0)
    p, n = (
        torch.multinomial(weights[anchors], triplets_per_anchor, replacement=True).flatten()
        for weights in (positives, negatives)
    )
    a = anchors.repeat_interleave(triplets_per_anchor)
    return (a, p, n), positives.new_ones(len(a))


@no_grad()
def draw_evenly(counts: Pairs, draws: int) -> Int[Tensor, "N draws"]:
    """Random columns of each row in proportion to its whole counts; the first column where all are 0.

    `torch.multinomial` would synchronise with the GPU to check that no row is empty.
    """
    reached = counts.long().cumsum(1)
    # float64: half precision, if torch's default, has too few numbers to reach every column.
    shares = torch.rand(len(counts), draws, device=counts.device, dtype=torch.float64)
    places = (shares * reached[:, -1:]).long()
    return torch.searchsorted(reached, torch.minimum(places, reached[:, -1:] - 1), right=True)
