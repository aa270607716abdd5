"""Places in the full ranking of a set against itself, by counting. As S = S^T, each similarity is computed once.

    m(i) = i + |{g of another class: s_qg > s_qi, or s_qg = s_qi and g - q < i - q (mod G)}|

m(i) is the place of the i-th nearest item of the query's class. Items are numbered in the order of the circle of
`levelfield.metrics.ties`. A block is an arc of the circle: all of it comes before an item, or all of it after.

Shapes: G items, T items of one block, P - 1 other items of the largest class, R pairs of a query and one of them,
D dimensions.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64, Integer, Num
from torch import Tensor
from torch.nn.functional import pad

from levelfield.metrics.ranking import ClassMembers, Similarity, tie_free_keys
from levelfield.metrics.threads import Each, num_shares
from levelfield.metrics.ties import tie_places

# Most rows of a tile on a CPU, so that it stays in the cache, and on a GPU, and fewest rows of any tile.
CPU_BLOCK, GPU_BLOCK = 1024, 5120
LEAST_BLOCK = 256
# For each item of each query's class: its index, similarity, count, and their copies in the blocks.
ENTRY_BYTES = 48


def counting_block(num_relevant_G: Integer[Tensor, " gallery"], memory_budget: int, max_mean_relevant: float) -> int:
    """Rows of a block: two tiles a thread are half of the budget. 0 if counting is slower or needs more memory."""
    block = math.isqrt(memory_budget // 2 // 8 // num_shares(num_relevant_G.device)) // 32 * 32
    block = min(block, CPU_BLOCK if num_relevant_G.device.type == "cpu" else GPU_BLOCK)
    num_items, largest = len(num_relevant_G), int(num_relevant_G.max()) + 1
    fits = (
        LEAST_BLOCK <= block <= num_items
        and largest <= block
        and ENTRY_BYTES * num_items * largest <= memory_budget // 2
    )
    return block if fits and float(num_relevant_G.double().mean()) <= max_mean_relevant else 0


def counted_places(
    embeddings_GD: Num[Tensor, "gallery dim"],
    labels_G: Integer[Tensor, " gallery"],
    similarity: Similarity,
    block: int,
    each: Each,
) -> tuple[Int64[Tensor, "gallery places"], Bool[Tensor, "gallery places"]]:
    """Ascending places (1 = nearest) of the items of each item's class, padded, and a mask of the real ones."""
    circle_G = tie_places(len(labels_G), labels_G.device).argsort()
    labels_G = labels_G[circle_G]  # from here on an item's number is its position in this order

    def rows_of(items: Int64[Tensor, " some"]) -> Num[Tensor, "some dim"]:
        return embeddings_GD[circle_G[items]]

    items_GP, own_GP = own_similarities(rows_of, labels_G, similarity, block)
    steps_GP = (items_GP - torch.arange(len(items_GP), device=items_GP.device)[:, None]) % len(items_GP)
    nearest_GP = tie_free_keys(own_GP, steps_GP).argsort(dim=1, descending=True)
    # The item itself and the padding are last, at -inf.
    items_GP, own_GP = (each.gather(1, nearest_GP)[:, :-1] for each in (items_GP, own_GP))
    found_GP = own_GP > -torch.inf
    del steps_GP, nearest_GP
    beyond_GP = torch.zeros_like(items_GP)
    blocks = [Block(start, block, items_GP, own_GP, found_GP) for start in range(0, len(labels_G), block)]
    members = ClassMembers(labels_G)
    shares = num_shares(labels_G.device)
    tiles_STT = own_GP.new_empty((2 * shares, block, block))
    counts_STP = items_GP.new_empty((shares, block, items_GP.shape[1]))

    def count(i: int, share: int) -> None:
        queries, (tile_TT, above_TT) = blocks[i], tiles_STT[2 * share : 2 * share + 2]
        items_TP, valid_TP = members.of(labels_G[queries.index_T], items_GP.shape[1] + 1)
        rows_TD = queries.rows(rows_of)
        counts_TP = counts_STP[share, : len(items_TP)].zero_()
        for others in blocks[i + share :: shares]:
            similarity(rows_TD, others.rows(rows_of), out=tile_TT)
            tile_TT[:, len(others.index_T) :] = -torch.inf
            rows_R, slots_R = (valid_TP & others.holds(items_TP)).nonzero(as_tuple=True)
            tile_TT[rows_R, others.column_of(items_TP[rows_R, slots_R])] = -torch.inf
            counts_TP += queries.count(tile_TT, others, above_TT)
            if others is not queries:
                beyond_GP[others.index_T] += others.count(tile_TT.T, queries, above_TT.T)

    for i, queries in enumerate(blocks):
        each(partial(count, i), range(shares))
        beyond_GP[queries.index_T] += counts_STP[:, : len(queries.index_T)].sum(0)
    blocks.clear()
    beyond_GP += torch.arange(1, beyond_GP.shape[1] + 1, device=labels_G.device)
    back_G = circle_G.argsort()
    return beyond_GP[back_G], found_GP[back_G]


class Block:
    """Consecutive items, those of large classes first, and their similarities to their class in descending order."""

    def __init__(
        self,
        start: int,
        block: int,
        items_GP: Int64[Tensor, "gallery places"],
        own_GP: Float[Tensor, "gallery places"],
        found_GP: Bool[Tensor, "gallery places"],
    ) -> None:
        self.start, self.block = start, block
        here = slice(start, start + block)
        self.index_T = start + found_GP[here].sum(1).argsort(descending=True, stable=True)
        self.items_TP, self.own_TP = items_GP[self.index_T], own_GP[self.index_T]
        self.below_TP = self.own_TP.nextafter(own_GP.new_tensor(-torch.inf))
        self.lengths = found_GP[here].sum(0).tolist()

    def holds(self, items: Int64[Tensor, "*items"]) -> Bool[Tensor, "*items"]:
        return (items >= self.start) & (items < self.start + self.block)

    def rows(self, rows_of: Callable[[Tensor], Tensor]) -> Num[Tensor, "block dim"]:
        """The rows, padded to the size of a block, so that all products are rounded alike. Padding is never counted."""
        rows_TD = rows_of(self.index_T)
        return pad(rows_TD, (0, 0, 0, self.block - len(rows_TD)))

    def column_of(self, items_R: Int64[Tensor, " pairs"]) -> Int64[Tensor, " pairs"]:
        """Columns of items of this block."""
        columns_T = torch.empty_like(self.index_T)
        columns_T[self.index_T - self.start] = torch.arange(len(columns_T), device=columns_T.device)
        return columns_T[items_R - self.start]

    def count(
        self, tile_TT: Float[Tensor, "block block"], others: "Block", above_TT: Float[Tensor, "block block"]
    ) -> Int64[Tensor, "rows places"]:
        """How many of the other block's items come before each item of the query's own class."""
        counts_TP = torch.zeros_like(self.items_TP)
        queries_T1 = self.index_T[:, None]
        # A block with the item or the query is not a whole arc: equal similarities are compared one by one.
        is_inside_TP = others.holds(self.items_TP) | (others is self)
        is_before_TP = comes_first(others.start, self.items_TP, queries_T1) & ~is_inside_TP
        limit_PT = torch.where(is_before_TP, self.below_TP, self.own_TP).T.contiguous()
        for slot, length in enumerate(self.lengths):
            if length:
                above_nT = torch.gt(tile_TT[:length], limit_PT[slot, :length, None], out=above_TT[:length])
                counts_TP[:length, slot] = above_nT.sum(1).long()
        for pairs_R2 in (is_inside_TP & (self.own_TP > -torch.inf)).nonzero().split(LEAST_BLOCK):
            rows_R, slots_R = pairs_R2.unbind(1)
            is_equal_RT = tile_TT[rows_R, : len(others.index_T)] == self.own_TP[rows_R, slots_R, None]
            if is_equal_RT.any():
                is_first_RT = comes_first(others.index_T, self.items_TP[rows_R, slots_R, None], queries_T1[rows_R])
                counts_TP[rows_R, slots_R] += (is_equal_RT & is_first_RT).sum(1)
        return counts_TP


def comes_first(one: int | Tensor, other: Tensor, start: Tensor) -> Tensor:
    """Whether position `one` comes before `other` on the circle from `start`."""
    return (one < other) ^ (one < start) ^ (other < start)


def own_similarities(
    rows_of: Callable[[Tensor], Tensor], labels_G: Integer[Tensor, " gallery"], similarity: Similarity, block: int
) -> tuple[Int64[Tensor, "gallery places"], Float[Tensor, "gallery places"]]:
    """The items of each item's class, ascending, and their similarities; -inf for the item itself and the padding."""
    members = ClassMembers(labels_G)
    items_GP, valid_GP = members.of(labels_G, int(members.counts_C.max()))
    own_GP = torch.full(items_GP.shape, -torch.inf, dtype=torch.float32, device=labels_G.device)
    order_G = members.order_G
    rank_G = torch.empty_like(order_G)
    rank_G[order_G] = torch.arange(len(order_G), device=order_G.device)
    ends = members.counts_C.cumsum(0).tolist()
    start, done = 0, 0
    for end, next_end in zip(ends, [*ends[1:], math.inf], strict=True):
        if next_end - start <= block:
            continue
        # A window of whole classes in the order of the labels; other items in it are ignored.
        first = min(start, len(order_G) - block)
        window_T = order_G[first : first + block]
        rows_TD = rows_of(window_T)
        products_TT = similarity(rows_TD, rows_TD)
        queries_n = order_G[done:end]
        columns_nP = (rank_G[items_GP[queries_n]] - first).clamp(0, block - 1)
        own_GP[queries_n] = products_TT[done - first : end - first].gather(1, columns_nP)
        start = done = end
    queries_G1 = torch.arange(len(labels_G), device=labels_G.device)[:, None]
    return items_GP, own_GP.masked_fill_(~valid_GP | (items_GP == queries_G1), -torch.inf)
