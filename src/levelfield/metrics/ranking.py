"""Exact places in the similarity ranking, in bounded memory.

Equal similarities are ranked by index everywhere.

Shapes: Q queries, G gallery items, B queries of one block, K neighbours, P items with the query's label, D dimensions.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from levelfield.metrics.distances import MIN_BLOCK

Similarity = Callable[[Tensor, Tensor], Tensor]
# Columns of a row are searched in strided groups of this size, whose maxima rule most of them out.
GROUP = 16


def block_starts(num_rows: int, block: int) -> list[tuple[int, int]]:
    """Cut `num_rows` into (start, stop) blocks of about `block` rows, none under 32 rows unless there are fewer."""
    num_blocks = max(1, num_rows // max(block, MIN_BLOCK))
    edges = [num_rows * i // num_blocks for i in range(num_blocks + 1)]
    return list(pairwise(edges))


def symmetric_blocks(
    embeddings_GD: Float[Tensor, "gallery dim"], block: int, similarity: Similarity
) -> Iterator[tuple[int, int, Float[Tensor, "block gallery"]]]:
    """Rows of the similarity matrix of a set with itself: only blocks on and above the diagonal are computed.

    Holds the whole (G, G) matrix; a block's rows below the diagonal are those that earlier blocks have mirrored.
    """
    num_items = len(embeddings_GD)
    matrix_GG = torch.empty((num_items, num_items), device=embeddings_GD.device)
    for start, stop in block_starts(num_items, block):
        above = similarity(embeddings_GD[start:stop], embeddings_GD[start:])
        matrix_GG[start:stop, start:] = above
        matrix_GG[stop:, start:stop] = above[:, stop - start :].T
        yield start, stop, matrix_GG[start:stop]


def largest(
    similarities_BG: Float[Tensor, "block gallery"], count: int
) -> tuple[Float[Tensor, "block count"], Int64[Tensor, "block count"]]:
    """The `count` largest of each row in descending order, as topk; which of equal ones is open.

    An item among the `count` largest lies in one of the `count` groups with the largest maxima, so that most of the
    row is read once and never sorted.
    """
    block, num_gallery = similarities_BG.shape
    group = GROUP if num_gallery >= 4 * GROUP * count else GROUP // 2
    stride = num_gallery // group
    if num_gallery < 4 * group * count or similarities_BG.stride(1) != 1:
        return similarities_BG.topk(count, dim=1)
    grouped_BMS = similarities_BG[:, : stride * group].unflatten(1, (group, stride))
    groups_BC = grouped_BMS.amax(dim=1).topk(count, dim=1, sorted=False).indices
    members_M = torch.arange(group, device=groups_BC.device) * stride
    candidates_BC = (groups_BC[:, :, None] + members_M).flatten(1)
    rest_R = torch.arange(stride * group, num_gallery, device=groups_BC.device)
    candidates_BC = torch.cat([candidates_BC, rest_R.expand(block, -1)], dim=1)
    values_BK, slots_BK = similarities_BG.gather(1, candidates_BC).topk(count, dim=1)
    return values_BK, candidates_BC.gather(1, slots_BK)


def top_neighbors(
    similarities_BG: Float[Tensor, "block gallery"], num_neighbors: int
) -> Int64[Tensor, "block num_neighbors"]:
    """Indices of the largest float32 similarities in descending order, equal ones in ascending order of index."""
    num_gallery = similarities_BG.shape[1]
    values_BK, indices_BK = largest(similarities_BG, min(num_neighbors + 1, num_gallery))
    tied_T = (values_BK[:, 1:] == values_BK[:, :-1]).any(dim=1).nonzero().squeeze(1)
    indices_BK = indices_BK[:, :num_neighbors]
    for rows_t in tied_T.split(max(1, len(similarities_BG) // 4)):
        indices_BK[rows_t] = tie_free_keys(similarities_BG[rows_t]).topk(indices_BK.shape[1], dim=1).indices
    return indices_BK


def tie_free_keys(similarities_BG: Float[Tensor, "block gallery"]) -> Int64[Tensor, "block gallery"]:
    """Integers in the order of the float32 similarities, the lower index above the higher where those are equal."""
    bits_BG = (similarities_BG + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    bits_BG = torch.where(bits_BG < 0, bits_BG ^ 0x7FFFFFFF, bits_BG)
    num_gallery = similarities_BG.shape[1]
    return bits_BG.long() * 2**32 + torch.arange(num_gallery - 1, -1, -1, device=bits_BG.device)


def places_from_hits(
    hits_BK: Bool[Tensor, "block num_neighbors"],
) -> tuple[Int64[Tensor, "block places"], Bool[Tensor, "block places"]]:
    """Ascending places (1 = nearest) of the hits in a ranking, and which of the entries hold one."""
    rows_H, columns_H = hits_BK.nonzero(as_tuple=True)
    counts_B = hits_BK.sum(dim=1)
    slots_H = torch.arange(len(rows_H), device=rows_H.device) - (counts_B.cumsum(0) - counts_B)[rows_H]
    num_places = max(1, int(counts_B.max()))
    places_BP = hits_BK.new_zeros((len(hits_BK), num_places), dtype=torch.int64)
    places_BP[rows_H, slots_H] = columns_H + 1
    return places_BP, places_BP > 0


def places_of(
    similarities_BG: Float[Tensor, "block gallery"],
    items_BP: Int64[Tensor, "block items"],
    valid_BP: Bool[Tensor, "block items"],
) -> Int64[Tensor, "block items"]:
    """Ascending places of chosen items in the full ranking of each row; those not valid come last, past the ranking.

    The row's values are sorted and each item's looked up; where an item's value is not alone, the equal ones of lower
    index are counted.
    """
    num_gallery = similarities_BG.shape[1]
    values_BP = similarities_BG.gather(1, items_BP)
    sorted_BG = sort_values(similarities_BG)
    ends_BP = torch.searchsorted(sorted_BG, values_BP, right=True)
    places_BP = num_gallery - ends_BP + 1
    tied_BP = valid_BP & (ends_BP >= 2) & (sorted_BG.gather(1, (ends_BP - 2).clamp(min=0)) == values_BP)
    del sorted_BG
    columns_G = torch.arange(num_gallery, device=places_BP.device)
    for pairs_t2 in tied_BP.nonzero().split(max(1, len(similarities_BG) // 2)):
        rows_t, slots_t = pairs_t2.unbind(1)
        equal_tG = similarities_BG[rows_t] == values_BP[rows_t, slots_t, None]
        places_BP[rows_t, slots_t] += (equal_tG & (columns_G < items_BP[rows_t, slots_t, None])).sum(dim=1)
    return places_BP.masked_fill(~valid_BP, num_gallery + 1).sort(dim=1).values


def sort_values(similarities_BG: Float[Tensor, "block gallery"]) -> Float[Tensor, "block gallery"]:
    """Each row ascending. numpy sorts float32 on the CPU some twenty times faster than torch, which carries indices."""
    if similarities_BG.device.type != "cpu":
        return similarities_BG.sort(dim=1).values
    sorted_BG = similarities_BG.clone(memory_format=torch.contiguous_format)
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(lambda rows: rows.sort(axis=1), np.array_split(sorted_BG.numpy(), num_threads)))
    return sorted_BG
