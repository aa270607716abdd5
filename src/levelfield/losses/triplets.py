"""Triplets (i, p, n) without a table of them: lists of positives, and counts of the triplets that violate a margin.

N anchors, M others, K positive pairs, P the largest number of positives of an anchor.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, no_grad

from levelfield.losses.base import IndicesTuple, can_look
from levelfield.numerics import inner_products

# On a GPU up to this many entries are sorted in full: reading P back would take longer than the rest of the loss.
SORTED_WHOLE = 2**22
# On a CPU up to this many triplets are compared one by one, with fewer operations than sorting the distances.
COMPARED = 2**16


@no_grad()
def positive_pairs(positives: Float[Tensor, "N M"]) -> tuple[Int[Tensor, " K"], Int[Tensor, " K"]]:
    """(anchor, positive) of each positive pair, repeated as often as it counts, ordered by anchor."""
    anchors, others = positives.nonzero(as_tuple=True)
    repeats = positives[anchors, others].long()
    return anchors.repeat_interleave(repeats), others.repeat_interleave(repeats)


@no_grad()
def padded_positives(
    positives: Float[Tensor, "N M"], once: bool = False
) -> tuple[Int[Tensor, "N P"], Bool[Tensor, "N P"]]:
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


@no_grad()
def count_violations(
    near: Float[Tensor, "N P"],
    present: Bool[Tensor, "N P"],
    far: Float[Tensor, "N M"],
    negatives: Float[Tensor, "N M"],
    margin: float,
) -> tuple[Float[Tensor, "N P"], Float[Tensor, "N M"]]:
    """Number of triplets with near_ip > far_in - margin that contain each positive and each negative.

    Sorting an anchor's positives and looking up where each negative falls among them takes O(N M log P), not O(N P M).
    """
    sorted_near, order = near.masked_fill(~present, torch.inf).sort(1)
    passed = torch.searchsorted(sorted_near, far - margin, right=True)
    per_negative = negatives * (present.sum(1, keepdim=True) - passed)
    histogram = near.new_zeros(len(near), near.shape[1] + 1).scatter_add_(1, passed, negatives)
    per_rank = histogram.cumsum(1)[:, :-1]
    per_positive = torch.zeros_like(near).scatter_(1, order, per_rank) * present
    return per_positive, per_negative


def are_few(dist: Float[Tensor, "N M"]) -> bool:
    """Whether `compare_triplets` is faster than `count_violations`."""
    return can_look(dist) and dist.numel() * dist.shape[1] <= COMPARED


@no_grad()
def compare_triplets(
    dist: Float[Tensor, "N M"], positives: Float[Tensor, "N M"], negatives: Float[Tensor, "N M"], margin: float
) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N M"]]:
    """`count_violations` by a table of all triplets, with the positives in their own columns."""
    violated = (dist[:, :, None] > (dist - margin)[:, None, :]).to(dist.dtype)
    per_positive = positives * inner_products(violated, negatives[:, None])[:, :, 0]
    return per_positive, negatives * inner_products(positives[:, None], violated.mT)[:, 0]


@no_grad()
def random_triplets(
    positives: Float[Tensor, "N M"], negatives: Float[Tensor, "N M"], triplets_per_anchor: int
) -> tuple[IndicesTuple, Float[Tensor, " T"]]:
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
def draw_evenly(counts: Float[Tensor, "N M"], draws: int) -> Int[Tensor, "N draws"]:
    """Random columns of each row in proportion to its whole counts; the first column where all are 0.

    `torch.multinomial` would synchronise with the GPU to check that no row is empty.
    """
    reached = counts.long().cumsum(1)
    # float64: half precision, if torch's default, has too few numbers to reach every column.
    shares = torch.rand(len(counts), draws, device=counts.device, dtype=torch.float64)
    places = (shares * reached[:, -1:]).long()
    return torch.searchsorted(reached, torch.minimum(places, reached[:, -1:] - 1), right=True)
