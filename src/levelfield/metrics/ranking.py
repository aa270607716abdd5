"""Exact ranks of the items that share a label with a query, in bounded memory, and the scores that follow from them.

Equal similarities are ranked in an order that depends on no label, so collapsed embeddings score as by chance. Each
item has a position on a circle, a hash of its number. A query ranks equal items in the order of the circle, starting at
its own position. So each item comes first for equally many queries, and sorted labels score like shuffled ones. With
one order for all queries, the class of its first item would decide.

Shapes: N queries given, Q of them scored, G gallery items, B queries of one block, P items that share a label with
the query, V largest values, T items of one tile, D dimensions, C classes, L labels of sets.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer, Num
from torch import Tensor

from levelfield.core.labels import Labels, LabelSets, num_shared
from levelfield.metrics.counts import Ranks
from levelfield.metrics.definitions import Wanted
from levelfield.metrics.distances import DISTANCES, MIN_BLOCK, full_precision

DEFAULT_MEMORY_BUDGET = 400 * 2**20
# Part of a GPU's free memory that is the default there.
FREE_SHARE = 4
# Larger blocks are not faster. On a GPU smaller ones would wait for the starts of their operations.
MAX_BLOCK, MAX_GPU_VALUES = 512, 2**28
# Columns of a product at a time on the CPU.
COLUMNS = 1024
# For each item of the class: ranks, precisions and their temporaries, in int64 and float64.
MEMBER_BYTES = 120
# For each value that a GPU selects: its column, its copies and a sort's.
SELECTED_BYTES = 32
# The largest values of an item among earlier ones; to keep more takes as long as the other half of the products.
MOST_KEPT = 256
# Products of fewer dimensions take less time than what is kept of their other half.
LEAST_HALVED = 256
# Values of the rows whose ties are resolved at a time.
TEMPORARY_VALUES = 2**20
# Values among which the largest are selected at a time, so that they stay in the processor's cache.
CACHED_VALUES = 2**18
# Smaller groups do not pay.
LEAST_GROUP = 2
# Positions on the circle of ties.
CIRCLE = 2**32
# Products of numbers that take one thread about five milliseconds.
LEAST_SHARED = 2**28
# A group of each query and of each item of the gallery.
Groups = tuple[Integer[Tensor, " queries"], Integer[Tensor, " gallery"]]
# Does something with each of some jobs.
Each = Callable[[Callable[[Any], None], Iterable[Any]], object]


class Ranking:
    """Queries and the gallery that they are ranked against, as `DISTANCES` prepares both.

    Args:
        excludes_self: the queries are the gallery, and none retrieves itself.
        groups: a number of each query and of each item; items that match the query and have its group leave its
            gallery.

    Attributes:
        num_relevant_N: R, items of its gallery that share a label with each query.
        matched_Q: ascending numbers of the queries that have any.
        largest: P, the largest number of items that match a query, with itself.

    Raises:
        ValueError: no query matches another item, or those that do match all.
    """

    def __init__(
        self,
        queries_ND: Num[Tensor, "queries dim"],
        labels_N: Labels | LabelSets,
        gallery_GD: Num[Tensor, "gallery dim"],
        gallery_labels_G: Labels | LabelSets,
        distance: str,
        excludes_self: bool,
        groups: Groups | None = None,
    ) -> None:
        self.queries_ND, self.gallery_GD, self.excludes_self = queries_ND, gallery_GD, excludes_self
        self.has_sets = labels_N.ndim == 2
        # Few operators support other unsigned integers.
        self.labels_N = labels_N if self.has_sets else labels_N.long()
        self.members = SetMembers(gallery_labels_G) if self.has_sets else ClassMembers(gallery_labels_G.long())
        self.similarity = DISTANCES[distance][1]
        self.groups = groups
        in_class_N = self.members.count(self.labels_N)
        left_out = int(excludes_self) if groups is None else self.members.count(self.labels_N, groups)
        self.num_relevant_N = in_class_N - left_out
        self.matched_Q = (self.num_relevant_N > 0).nonzero().squeeze(1)
        if len(self.matched_Q) == 0:
            raise ValueError(f"none of the {len(labels_N)} queries shares its label with another item of the gallery")
        self.largest = int(in_class_N[self.matched_Q].max())
        if bool((in_class_N[self.matched_Q] == len(gallery_GD)).all()):
            raise ValueError(f"all {len(gallery_GD)} gallery items share a label with every query; use two labels")
        sizes = len(queries_ND), len(gallery_GD)
        self.positions_G, self.starts_N = tie_positions(*sizes, excludes_self, labels_N.device)

    def score(
        self, scored_Q: Int64[Tensor, " scored"], wanted: Wanted, memory_budget: int | None = None
    ) -> dict[str, Float64[Tensor, " scored"]]:
        """Score queries, each of which has a match.

        Args:
            scored_Q: their ascending numbers.
            memory_budget: bytes for similarities and their temporaries; None takes `default_memory_budget`.
        """
        device, num_gallery = self.gallery_GD.device, len(self.gallery_GD)
        scores = {name: torch.zeros(len(scored_Q), dtype=torch.float64, device=device) for name in wanted.rows}
        if len(scored_Q) == 0:
            return scores
        memory_budget = default_memory_budget(device) if memory_budget is None else memory_budget
        num_relevant_Q = self.num_relevant_N[scored_Q]
        depth = wanted.depth(num_gallery, int(num_relevant_Q.max()))
        # Float32 similarities, their sorted values down to the depth, and temporaries for each item of a class.
        # Label sets also need how many labels each item shares, and whether it shares any.
        bytes_a_row = (9 if self.has_sets else 4) * num_gallery + 4 * (depth + 1) + MEMBER_BYTES * self.largest
        if device.type != "cpu":
            bytes_a_row += SELECTED_BYTES * depth * (1 + group_size(num_gallery, depth))
        most = MAX_BLOCK if device.type == "cpu" else MAX_GPU_VALUES // num_gallery
        kept_bytes = 4 * num_gallery * (depth + 1 + self.largest)
        is_half_enough = (
            self.excludes_self
            and self.groups is None
            and not self.has_sets
            and device.type == "cpu"
            and len(scored_Q) == len(self.matched_Q) > num_gallery // 2
            and depth < MOST_KEPT
            and self.gallery_GD.shape[1] >= LEAST_HALVED
            and kept_bytes <= memory_budget // 4
        )
        block = min(most, (memory_budget - is_half_enough * kept_bytes) // bytes_a_row)

        def keep(
            positions_B: Int64[Tensor, " block"],
            ranks_BP: Int64[Tensor, "block items"],
            gains_BP: Float64[Tensor, "block items"] | None = None,
        ) -> None:
            if gains_BP is not None:
                ranks_BP, order_BP = ranks_BP.sort(dim=1)
                gains_BP = gains_BP.gather(1, order_BP)
            elif device.type == "cpu":
                ranks_BP = torch.from_numpy(np.sort(ranks_BP.numpy(), axis=1))
            else:
                ranks_BP = ranks_BP.sort(dim=1).values
            ranks = Ranks(ranks_BP.double(), ranks_BP <= depth, num_relevant_Q[positions_B].double(), gains_BP)
            for name, (metric, numbers) in wanted.rows.items():
                scores[name][positions_B] = metric.score(ranks, *numbers)

        threads = by_threads(device, len(scored_Q) * self.gallery_GD.numel())
        with torch.inference_mode(), full_precision(device), threads as each:
            if is_half_enough:
                Halves(self, depth, block).rank(scored_Q, keep, each)
            else:
                shares = num_shares(device)
                edges = block_starts(len(scored_Q), max(1, block // shares))
                parts = [edges[share::shares] for share in range(shares)]
                each(partial(self.rank_rows, depth, scored_Q, keep), parts)
        return scores

    def rank_rows(
        self,
        depth: int,
        scored_Q: Int64[Tensor, " scored"],
        keep: Callable[..., None],
        edges: list[tuple[int, int]],
    ) -> None:
        """Rank some blocks of rows, all by one thread: what a core has computed stays in its cache."""
        num_gallery = len(self.gallery_GD)
        # New memory for each block would add a tenth to the time of the product, by page faults.
        height = max((stop - start for start, stop in edges), default=0)
        buffer_BG = torch.empty((height, num_gallery), dtype=torch.float32, device=scored_Q.device)
        for start, stop in edges:
            queries_B = scored_Q[start:stop]
            rows_BG = self.similarities_of(queries_B, buffer_BG[: stop - start])
            items_BP, valid_BP, *gains_BP = self.matches_of(queries_B)
            if self.groups is not None:
                same_BP = valid_BP & (self.groups[1][items_BP] == self.groups[0][queries_B, None])
                valid_BP = valid_BP & ~same_BP
                rows_R, slots_R = same_BP.nonzero(as_tuple=True)
                rows_BG[rows_R, items_BP[rows_R, slots_R]] = -torch.inf
            sorted_BV = largest_values(rows_BG, min(depth + 1, num_gallery))
            values_BP = rows_BG.gather(1, items_BP)
            ranks_BP, tied_T = self.ranks_of(sorted_BV, values_BP, valid_BP, depth)
            for rows_R in tied_T.split(max(1, TEMPORARY_VALUES // num_gallery)) if len(tied_T) else ():
                keys_RG = tie_free_keys(rows_BG[rows_R], self.starts_N[queries_B[rows_R]], self.positions_G)
                found_RP = look_up(largest_values(keys_RG, depth), keys_RG.gather(1, items_BP[rows_R]))[0]
                ranks_BP[rows_R] = found_RP.clamp(max=depth + 1).masked_fill(~valid_BP[rows_R], depth + 1)
            keep(torch.arange(start, stop, device=scored_Q.device), ranks_BP, *(each * valid_BP for each in gains_BP))

    def matches_of(self, queries_B: Int64[Tensor, " block"]) -> tuple[Tensor, ...]:
        """What the members know of the queries; none matches itself."""
        items_BP, valid_BP, *gains_BP = self.members.of(self.labels_N[queries_B], self.largest)
        if self.excludes_self:
            valid_BP = valid_BP & (items_BP != queries_B[:, None])
        return items_BP, valid_BP, *gains_BP

    def similarities_of(
        self, queries_B: Int64[Tensor, " block"], rows_BG: Float[Tensor, "block gallery"]
    ) -> Float[Tensor, "block gallery"]:
        """Similarities of queries and gallery, written into `rows_BG`; -inf for a query with itself."""
        num_gallery, device = len(self.gallery_GD), queries_B.device
        width = num_gallery
        if device.type == "cpu":  # narrow results stay in the cache: 100 GFLOPS a core instead of 85
            threads = num_shares(device)
            width = -(-num_gallery // (threads * math.ceil(num_gallery / (threads * COLUMNS))))
        queries_BD = self.queries_ND[queries_B]
        for start, stop in block_starts(num_gallery, width):
            self.similarity(queries_BD, self.gallery_GD[start:stop], out=rows_BG[:, start:stop])
        return rows_BG.scatter_(1, queries_B[:, None], -torch.inf) if self.excludes_self else rows_BG

    def ranks_of(
        self,
        sorted_BV: Float[Tensor, "block values"],
        values_BP: Float[Tensor, "block items"],
        valid_BP: Bool[Tensor, "block items"],
        depth: int,
    ) -> tuple[Int64[Tensor, "block items"], Int64[Tensor, " tied"]]:
        """Rank (1 = nearest) of each row's items, and the rows in which such a value occurs more than once.

        Each item's value is looked up among the largest. Those not valid or further down have rank `depth + 1`.

        Args:
            sorted_BV: the `depth + 1` largest values of each row, ascending: the last shows whether that before ties.
        """
        ranks_BP, tied_BP = look_up(sorted_BV, values_BP)
        tied_T = (tied_BP & valid_BP & (ranks_BP <= depth)).any(dim=1).nonzero().squeeze(1)
        return ranks_BP.masked_fill(~valid_BP, depth + 1).clamp(max=depth + 1), tied_T


class Halves:
    """Ranks in a set against itself on the CPU. As S = S^T, only tiles on and above the diagonal are computed.

    A tile's rows are whole when those before them are done: of their similarities to earlier items, the largest are
    kept, and those to items of the same class. Rows with ties are computed again at the end, together.
    """

    def __init__(self, ranking: Ranking, depth: int, block: int) -> None:
        self.ranking, self.depth = ranking, depth
        num_items = len(ranking.gallery_GD)
        self.edges = block_starts(num_items, block)
        self.num_values = min(depth + 1, num_items)
        self.kept_GV = np.full((num_items, self.num_values), -np.inf, np.float32)
        self.own_GP = torch.full((num_items, ranking.largest), -torch.inf, dtype=torch.float32)

    def rank(self, scored_Q: Int64[Tensor, " scored"], keep: Callable[[Tensor, Tensor], None], each: Each) -> None:
        num_items, shares, tied = len(self.ranking.gallery_GD), num_shares(scored_Q.device), list[Tensor]()
        buffer = torch.empty(num_items * max(stop - start for start, stop in self.edges), dtype=torch.float32)
        for start, stop in self.edges:
            later = [(stop + first, stop + end) for first, end in block_starts(num_items - stop, MAX_BLOCK) if end]
            rows_BT = buffer[: (stop - start) * (num_items - start)].view(stop - start, -1)
            each(partial(self._fill, rows_BT, start), [(start, stop), *later])
            positions_B = torch.arange(*torch.searchsorted(scored_Q, torch.tensor([start, stop])).tolist())
            if len(positions_B) == 0:
                continue
            if len(positions_B) < len(rows_BT):
                rows_BT = rows_BT[scored_Q[positions_B] - start]
            parts = zip(positions_B.tensor_split(shares), rows_BT.tensor_split(shares), strict=True)

            def score(part: tuple[Tensor, Tensor], start: int = start, stop: int = stop) -> None:
                positions_B, rows_BT = part
                ranks_BP, tied_T = self._ranks(scored_Q[positions_B], rows_BT, start, stop)
                keep(positions_B, ranks_BP)
                tied.append(positions_B[tied_T])

            each(score, parts)
        tied_T = torch.cat(tied)
        edges = block_starts(len(tied_T), max(MIN_BLOCK, TEMPORARY_VALUES // num_items))
        again = partial(self.ranking.rank_rows, self.depth, scored_Q[tied_T], lambda rows, *of: keep(tied_T[rows], *of))
        each(again, [edges[share::shares] for share in range(shares)])

    def _fill(self, rows_BT: Float[Tensor, "block later"], start: int, columns: tuple[int, int]) -> None:
        first, end = columns
        tile_BT = rows_BT[:, first - start : end - start]
        items_GD = self.ranking.gallery_GD
        self.ranking.similarity(items_GD[start : start + len(rows_BT)], items_GD[first:end], out=tile_BT)
        if first == start:
            tile_BT.fill_diagonal_(-torch.inf)
            return
        # Keep of each row the largest of its values and of the tile's column, the least first.
        kept_TV, values_BT = self.kept_GV[first:end], tile_BT.numpy()
        grown_T = np.flatnonzero(values_BT.max(axis=0) > kept_TV[:, 0])
        if len(grown_T):
            both = np.concatenate([kept_TV[grown_T], values_BT.T[grown_T]], axis=1)
            both.partition(len(tile_BT), axis=1)
            kept_TV[grown_T] = both[:, len(tile_BT) :]

    def _ranks(
        self, queries_B: Int64[Tensor, " block"], rows_BT: Float[Tensor, "block later"], start: int, stop: int
    ) -> tuple[Int64[Tensor, "block items"], Int64[Tensor, " tied"]]:
        """What `Ranking.ranks_of` finds, from the rows' similarities to the items from `start` on."""
        items_BP, valid_BP = self.ranking.matches_of(queries_B)
        later_BP = rows_BT.gather(1, (items_BP - start).clamp(min=0))
        values_BP = torch.where(items_BP >= start, later_BP, self.own_GP[queries_B])
        earlier_B = (valid_BP & (items_BP < queries_B[:, None])).sum(1)
        later_R, slots_R = (valid_BP & (items_BP >= stop)).nonzero(as_tuple=True)
        self.own_GP[items_BP[later_R, slots_R], earlier_B[later_R]] = values_BP[later_R, slots_R]
        largest_BV = largest_values(rows_BT, min(self.num_values, rows_BT.shape[1])).numpy()
        both = np.concatenate([self.kept_GV[queries_B.numpy()], largest_BV], axis=1)
        both.sort(axis=1)
        sorted_BV = torch.from_numpy(both[:, -self.num_values :].copy())
        return self.ranking.ranks_of(sorted_BV, values_BP, valid_BP, self.depth)


class ClassMembers:
    """Which items of a gallery have a label."""

    def __init__(self, labels_G: Integer[Tensor, " gallery"]) -> None:
        self.labels_G = labels_G
        self.order_G = labels_G.argsort(stable=True)
        self.classes_C, self.counts_C = labels_G.unique(return_counts=True)
        self.starts_C = self.counts_C.cumsum(0) - self.counts_C

    def count(self, labels_N: Integer[Tensor, " queries"], groups: Groups | None = None) -> Int64[Tensor, " queries"]:
        """Number of items with each label; with groups, of those in the query's group."""
        if groups is not None:
            both = torch.stack([torch.cat([labels_N, self.labels_G]), torch.cat(groups)])
            pairs = both.unique(dim=1, return_inverse=True)[1]
            return ClassMembers(pairs[len(labels_N) :]).count(pairs[: len(labels_N)])
        if len(self.classes_C) == 0:
            return torch.zeros_like(labels_N)
        slots_N = torch.searchsorted(self.classes_C, labels_N.contiguous()).clamp(max=len(self.classes_C) - 1)
        return torch.where(self.classes_C[slots_N] == labels_N, self.counts_C[slots_N], 0)

    def of(
        self, labels_B: Integer[Tensor, " block"], largest: int
    ) -> tuple[Int64[Tensor, "block items"], Bool[Tensor, "block items"]]:
        """Ascending numbers of the items with each label (all in the gallery), padded, and a mask of the real ones.

        Args:
            largest: P, of the labels' classes.
        """
        slots_B = torch.searchsorted(self.classes_C, labels_B.contiguous())
        steps_P = torch.arange(largest, device=labels_B.device)
        valid_BP = steps_P < self.counts_C[slots_B][:, None]
        return self.order_G[torch.where(valid_BP, self.starts_C[slots_B, None] + steps_P, 0)], valid_BP


class SetMembers:
    """Which items of a gallery share a label with a set; methods as of `ClassMembers`."""

    def __init__(self, sets_GL: LabelSets) -> None:
        self.sets_GL = sets_GL

    def count(self, sets_NL: LabelSets, groups: Groups | None = None) -> Int64[Tensor, " queries"]:
        counts_N = torch.empty(len(sets_NL), dtype=torch.int64, device=sets_NL.device)
        for rows_B in torch.arange(len(sets_NL), device=sets_NL.device).split(
            1 + TEMPORARY_VALUES // len(self.sets_GL)
        ):
            matches_BG = num_shared(sets_NL[rows_B], self.sets_GL) > 0
            if groups is not None:
                matches_BG &= groups[0][rows_B, None] == groups[1]
            counts_N[rows_B] = matches_BG.sum(1)
        return counts_N

    def of(self, sets_BL: LabelSets, largest: int) -> tuple[Tensor, ...]:
        """Also how many labels each item shares."""
        shared_BG = num_shared(sets_BL, self.sets_GL)
        rows_M, items_M = shared_BG.nonzero(as_tuple=True)
        valid_BP = torch.arange(largest, device=sets_BL.device) < rows_M.bincount(minlength=len(sets_BL))[:, None]
        items_BP = torch.zeros(valid_BP.shape, dtype=torch.int64, device=sets_BL.device)
        items_BP.masked_scatter_(valid_BP, items_M)
        return items_BP, valid_BP, shared_BG.gather(1, items_BP).double()


def tie_positions(
    num_queries: int, num_gallery: int, excludes_self: bool, device: torch.device
) -> tuple[Int64[Tensor, " gallery"], Int64[Tensor, " queries"]]:
    """Positions of the items on the circle, and of the queries, which are numbered after a gallery apart.

    All differ: they are the 32-bit finaliser of MurmurHash3, a bijection, of the numbers 0, 1, ...

    Source: Appleby, https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp (`fmix32`).
    """
    hashed = np.arange(num_gallery + (0 if excludes_self else num_queries), dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ (hashed >> np.uint32(shift))) * np.uint32(factor)
    positions = torch.from_numpy(hashed.astype(np.int64)).to(device)
    return positions[:num_gallery], positions if excludes_self else positions[num_gallery:]


def tie_free_keys(
    similarities_BG: Float[Tensor, "block gallery"],
    starts_B: Int64[Tensor, " block"],
    positions_G: Int64[Tensor, " gallery"],
) -> Int64[Tensor, "block gallery"]:
    """Integers in the order of the float32 similarities; of equal ones, the first on the circle from the start wins."""
    bits_BG = (similarities_BG + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    bits_BG = torch.where(bits_BG < 0, bits_BG ^ 0x7FFFFFFF, bits_BG)
    steps_BG = (positions_G - starts_B[:, None]) & (CIRCLE - 1)
    return bits_BG.long().mul_(CIRCLE).add_(CIRCLE - 1).sub_(steps_BG)


def block_starts(num_rows: int, block: int) -> list[tuple[int, int]]:
    """Cut `num_rows` into (start, stop) blocks of at most `block` rows, none under 32 rows unless there are fewer."""
    num_blocks = max(1, min(-(-num_rows // max(block, 1)), num_rows // MIN_BLOCK))
    edges = [num_rows * i // num_blocks for i in range(num_blocks + 1)]
    return list(pairwise(edges))


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
        if count == num_gallery:
            return similarities_BG.sort(dim=1).values
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


def default_memory_budget(device: torch.device) -> int:
    """400 MiB; on a GPU a quarter of the memory that is free or that torch holds unused."""
    if device.type != "cuda":
        return DEFAULT_MEMORY_BUDGET
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + unused) // FREE_SHARE


def num_shares(device: torch.device) -> int:
    """How many jobs are done at a time: as many as torch has threads on the CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


@contextmanager
def by_threads(device: torch.device, num_products: int) -> Iterator[Each]:
    """Threads that each compute on one core, and wait for each other once for all jobs.

    Those within torch's operators wait at the end of each operator: ten times as long on a machine that others load.

    Args:
        num_products: of numbers; a few are not worth a second thread.
    """

    def in_turn(do: Callable[[Any], None], jobs: Iterable[Any]) -> None:
        for job in jobs:
            do(job)

    num_threads = num_shares(device)
    if num_threads == 1:
        yield in_turn
        return
    try:
        if num_products < LEAST_SHARED:
            torch.set_num_threads(1)
            yield in_turn
            return
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda do, jobs: list(pool.map(torch.inference_mode()(do), jobs))
    finally:
        torch.set_num_threads(num_threads)  # the number of later threads, too
