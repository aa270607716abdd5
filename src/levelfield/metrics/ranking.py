"""Exact places in the similarity ranking, in bounded memory.

Equal similarities are ranked in the order of `levelfield.metrics.ties`.

Shapes: Q queries, G gallery items, B queries of one block, K neighbours, P items with the query's label, D dimensions,
C classes.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer, Num
from torch import Tensor

from levelfield.metrics.distances import MIN_BLOCK
from levelfield.metrics.ties import CIRCLE, steps_from

# The similarity of two blocks, written into `out` if given.
Similarity = Callable[..., Tensor]
# Values of the rows whose ties are resolved at a time.
TEMPORARY_VALUES = 2**20
# Values among which the largest are selected at a time, so that they stay in the processor's cache.
CACHED_VALUES = 2**18
# Smaller groups do not pay.
LEAST_GROUP = 2


def block_starts(num_rows: int, block: int) -> list[tuple[int, int]]:
    """Cut `num_rows` into (start, stop) blocks of at most `block` rows, none under 32 rows unless there are fewer."""
    num_blocks = max(1, min(-(-num_rows // max(block, 1)), num_rows // MIN_BLOCK))
    edges = [num_rows * i // num_blocks for i in range(num_blocks + 1)]
    return list(pairwise(edges))


class ClassMembers:
    """Which items of a gallery have a label."""

    def __init__(self, labels_G: Integer[Tensor, " gallery"]) -> None:
        self.order_G = labels_G.argsort(stable=True)
        self.classes_C, self.counts_C = labels_G.unique(return_counts=True)
        self.starts_C = self.counts_C.cumsum(0) - self.counts_C

    def of(
        self, labels_B: Integer[Tensor, " block"], largest: int
    ) -> tuple[Int64[Tensor, "block items"], Bool[Tensor, "block items"]]:
        """Ascending indices of the items with each label (all in the gallery), padded, and a mask of the real ones.

        Args:
            largest: P, the size of the largest class among the labels.
        """
        slots_B = torch.searchsorted(self.classes_C, labels_B.contiguous())
        counts_B = self.counts_C[slots_B]
        steps_P = torch.arange(largest, device=labels_B.device)
        valid_BP = steps_P < counts_B[:, None]
        return self.order_G[torch.where(valid_BP, self.starts_C[slots_B, None] + steps_P, 0)], valid_BP


def tie_free_keys(
    similarities_BG: Float[Tensor, "block gallery"], steps_BG: Int64[Tensor, "block gallery"]
) -> Int64[Tensor, "block gallery"]:
    """Integers in the order of the float32 similarities; of equal similarities, fewer steps give the larger integer."""
    bits_BG = (similarities_BG + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    bits_BG = torch.where(bits_BG < 0, bits_BG ^ 0x7FFFFFFF, bits_BG)
    return bits_BG.long().mul_(CIRCLE).add_(CIRCLE - 1).sub_(steps_BG)


def places_of(
    similarities_BG: Float[Tensor, "block gallery"],
    items_BP: Int64[Tensor, "block items"],
    valid_BP: Bool[Tensor, "block items"],
    depth: int,
    starts_B: Int64[Tensor, " block"],
    tie_places_G: Int64[Tensor, " gallery"],
) -> Int64[Tensor, "block items"]:
    """Ascending places of chosen items in each row's ranking; `depth + 1` for those not valid or further down.

    The `depth` largest values are sorted, and the value of each item is looked up. Rows in which such a value occurs
    more than once are sorted again, by keys without ties.

    Args:
        starts_B: the queries' places on the circle of `levelfield.metrics.ties`.
        tie_places_G: the items' places on it.
    """
    num_gallery = similarities_BG.shape[1]
    depth = min(depth, num_gallery)
    # One value more than `depth` shows whether the last one occurs more than once.
    sorted_BV = largest_values(similarities_BG, min(depth + 1, num_gallery))
    places_BP, tied_BP = look_up(sorted_BV, similarities_BG.gather(1, items_BP))
    tied_T = (tied_BP & valid_BP & (places_BP <= depth)).any(dim=1).nonzero().squeeze(1)
    for rows_R in tied_T.split(max(1, TEMPORARY_VALUES // num_gallery)) if len(tied_T) else ():
        keys_RG = tie_free_keys(similarities_BG[rows_R], steps_from(starts_B[rows_R], tie_places_G))
        places_BP[rows_R] = look_up(largest_values(keys_RG, depth), keys_RG.gather(1, items_BP[rows_R]))[0]
    places_BP = places_BP.masked_fill(~valid_BP, depth + 1).clamp(max=depth + 1)
    if places_BP.device.type != "cpu":
        return places_BP.sort(dim=1).values
    return torch.from_numpy(np.sort(places_BP.numpy(), axis=1))


def look_up(
    sorted_BV: Num[Tensor, "block values"], values_BP: Num[Tensor, "block items"]
) -> tuple[Int64[Tensor, "block items"], Bool[Tensor, "block items"]]:
    """1 + the number of larger values in each ascending row, and whether the value occurs more than once."""
    ends_BP = torch.searchsorted(sorted_BV, values_BP, right=True)
    tied_BP = (ends_BP >= 2) & (sorted_BV.gather(1, (ends_BP - 2).clamp(min=0)) == values_BP)
    return sorted_BV.shape[1] - ends_BP + 1, tied_BP


def largest_values(similarities_BG: Num[Tensor, "block gallery"], count: int) -> Num[Tensor, "block count"]:
    """The `count` largest values of each row, ascending.

    A row is cut into groups. The `count` groups with the largest maxima hold the `count` largest values, so that one
    pass over the row is enough. On the CPU numpy selects and sorts values, about twenty times faster than torch, which
    also sorts indices.
    """
    num_gallery = similarities_BG.shape[1]
    group = group_size(num_gallery, count)
    if similarities_BG.device.type != "cpu":
        if group >= LEAST_GROUP:
            similarities_BG = values_of_best_groups(similarities_BG, count, group)
        return similarities_BG.topk(count, dim=1).values.flip(1).contiguous()
    largest_BV = np.empty((len(similarities_BG), count), similarities_BG.numpy().dtype)
    height = max(1, CACHED_VALUES // num_gallery)
    for start in range(0, len(largest_BV), height):
        part = similarities_BG[start : start + height].numpy()
        part = part.copy() if group < LEAST_GROUP else values_above_bound(part, count, group)
        part.sort(axis=1)
        largest_BV[start : start + height] = part[:, part.shape[1] - count :]
    return torch.from_numpy(largest_BV)


def group_size(num_values: int, count: int) -> int:
    """Size of the groups of which `count` are selected."""
    # It takes as long to select groups as to select among their values, and numpy is three times faster up to 512.
    size = max(math.isqrt(num_values // count), num_values // 500)
    return min(size, math.isqrt(num_values), num_values // (2 * count))


def values_above_bound(values_RG: np.ndarray, count: int, group: int) -> np.ndarray:
    """Each row's values above the `count`-th largest maximum of a group, padded by this bound.

    Group i holds the columns i, i + width, i + 2 width, ..., so that all maxima are taken at once.
    """
    num_rows, num_gallery = values_RG.shape
    width = -(-num_gallery // group)
    whole = (group - 1) * width
    maxima_RW = values_RG[:, :whole].reshape(num_rows, group - 1, width).max(1)
    rest_RW = maxima_RW[:, : num_gallery - whole]
    np.maximum(rest_RW, values_RG[:, whole:], out=rest_RW)
    bound_R1 = np.partition(maxima_RW, width - count, axis=1)[:, width - count, None]
    groups_S = np.flatnonzero(maxima_RW > bound_R1)
    rows_S = groups_S // width
    firsts_S1 = (groups_S + rows_S * (num_gallery - width))[:, None]
    found_SI = values_RG.reshape(-1).take(firsts_S1 + width * np.arange(group), mode="clip")
    above_SI = found_SI > bound_R1[rows_S]
    above_SI[:, -1] &= groups_S - rows_S * width < num_gallery - whole
    above_A = np.flatnonzero(above_SI)
    counts_R = np.bincount(rows_S[above_A // group], minlength=num_rows)
    part_RV = np.repeat(bound_R1, max(count, int(counts_R.max())), axis=1)
    part_RV[np.arange(part_RV.shape[1]) < counts_R[:, None]] = found_SI.reshape(-1)[above_A]
    return part_RV


def values_of_best_groups(values_BG: Num[Tensor, "block gallery"], count: int, group: int) -> Num[Tensor, "block some"]:
    """The values of the `count` groups of each row with the largest maxima, padded by the least of these."""
    num_gallery = values_BG.shape[1]
    width = -(-num_gallery // group)
    whole = (group - 1) * width
    maxima_BW = values_BG[:, :whole].unflatten(1, (group - 1, width)).amax(1)
    rest_BW = maxima_BW[:, : num_gallery - whole]
    torch.maximum(rest_BW, values_BG[:, whole:], out=rest_BW)
    bounds_BK, groups_BK = maxima_BW.topk(count, dim=1, sorted=False)
    columns_BV = (groups_BK[:, :, None] + torch.arange(0, group * width, width, device=values_BG.device)).flatten(1)
    found_BV = values_BG.gather(1, columns_BV.clamp(max=num_gallery - 1))
    return torch.where(columns_BV < num_gallery, found_BV, bounds_BK.amin(1, keepdim=True))
