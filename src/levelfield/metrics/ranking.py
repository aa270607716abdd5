"""Exact places in the similarity ranking, in bounded memory.

Equal similarities are ranked in the order of `levelfield.metrics.ties`.

Shapes: Q queries, G gallery items, B queries of one block, K neighbours, P items with the query's label, D dimensions,
C classes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
# Rows that are sorted at a time, so that they stay in the processor's cache.
SORTED_ROWS = 8


def block_starts(num_rows: int, block: int) -> list[tuple[int, int]]:
    """Cut `num_rows` into (start, stop) blocks of at most `block` rows, none under 32 rows unless there are fewer."""
    num_blocks = max(1, min(-(-num_rows // max(block, 1)), num_rows // MIN_BLOCK))
    edges = [num_rows * i // num_blocks for i in range(num_blocks + 1)]
    return list(pairwise(edges))


def symmetric_blocks(
    embeddings_GD: Num[Tensor, "gallery dim"], block: int, similarity: Similarity
) -> Iterator[tuple[int, int, Float[Tensor, "block gallery"]]]:
    """Rows of the similarity matrix of a set with itself; only blocks on and above the diagonal are computed.

    Each block stores its transpose for the blocks below it: G^2 / 2 values in all. The next block overwrites the rows.
    """
    num_items = len(embeddings_GD)
    edges = block_starts(num_items, block)
    rows = max(stop - start for start, stop in edges)
    buffer = torch.empty((rows, num_items), dtype=torch.float32, device=embeddings_GD.device)
    lefts = [buffer.new_empty((stop - start, start)) for start, stop in edges]
    for i, (start, stop) in enumerate(edges):
        rows_BG = buffer[: stop - start]
        rows_BG[:, :start] = lefts[i]
        similarity(embeddings_GD[start:stop], embeddings_GD[start:], out=rows_BG[:, start:])
        for left, (below, end) in zip(lefts[i + 1 :], edges[i + 1 :], strict=True):
            left[:, start:stop] = rows_BG[:, below:end].T
        yield start, stop, rows_BG


class ClassMembers:
    """Which items of a gallery have a label."""

    def __init__(self, labels_G: Integer[Tensor, " gallery"]) -> None:
        self.order_G = labels_G.argsort(stable=True)
        self.classes_C, self.counts_C = labels_G.unique(return_counts=True)
        self.starts_C = self.counts_C.cumsum(0) - self.counts_C

    def of(
        self, labels_B: Integer[Tensor, " block"]
    ) -> tuple[Int64[Tensor, "block items"], Bool[Tensor, "block items"]]:
        """Ascending indices of the items with each label (all in the gallery), padded, and a mask of the real ones."""
        slots_B = torch.searchsorted(self.classes_C, labels_B.contiguous())
        counts_B = self.counts_C[slots_B]
        steps_P = torch.arange(int(counts_B.max()), device=labels_B.device)
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
    tied_B = (tied_BP & valid_BP & (places_BP <= depth)).any(dim=1)
    for rows_R in tied_B.nonzero().squeeze(1).split(max(1, TEMPORARY_VALUES // num_gallery)):
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

    numpy selects and sorts values on the CPU about twenty times faster than torch, which also sorts indices.
    """
    if similarities_BG.device.type != "cpu":
        return similarities_BG.topk(count, dim=1).values.flip(1).contiguous()
    num_gallery = similarities_BG.shape[1]
    largest_BV = similarities_BG.new_empty((len(similarities_BG), count))

    def sort_rows(rows: tuple[np.ndarray, np.ndarray]) -> None:
        values, kept = rows
        for start in range(0, len(values), SORTED_ROWS):
            if 4 * count < num_gallery:
                part = np.partition(values[start : start + SORTED_ROWS], num_gallery - count, axis=1)
                part = part[:, num_gallery - count :]
            else:
                part = values[start : start + SORTED_ROWS].copy()
            part.sort(axis=1)
            kept[start : start + SORTED_ROWS] = part[:, part.shape[1] - count :]

    num_threads = torch.get_num_threads()
    shares = (np.array_split(tensor.numpy(), num_threads) for tensor in (similarities_BG, largest_BV))
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(sort_rows, zip(*shares, strict=True)))
    return largest_BV
