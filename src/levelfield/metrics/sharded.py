"""Scores of queries against a gallery that no process holds whole: each shows its share to the others, part by part.

Shapes: N items of all processes in order, W of them wanted, T items of one part, Q queries of this process, B of one
round, P items of a query's class, H items wanted of one process, D dimensions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float64, Int64, Num
from torch import Tensor
from torch.nn.functional import pad

from levelfield.metrics.distances import MIN_BLOCK, full_precision
from levelfield.metrics.query_scores import MAX_BLOCK, MEMBER_BYTES
from levelfield.metrics.ranking import ClassMembers, Similarity, largest_values, tie_free_keys
from levelfield.metrics.scores import Wanted, scores_from_places

# Of a similarity: itself, its key and the sorted keys.
SIMILARITY_BYTES = 24


class Shards:
    """The items of all processes, numbered from 0, each of which one process holds.

    Args:
        own_RD: the rows that this process holds.
        rows_N: where each item stands, the rows of all processes counted one after the other.
        lengths: how many rows each process has.
        part: items that are shown at a time.
        group: the processes.
    """

    def __init__(
        self,
        own_RD: Num[Tensor, "rows dim"],
        rows_N: Int64[Tensor, " items"],
        lengths: Sequence[int],
        part: int,
        group: Any = None,
    ) -> None:
        self.own_RD, self.rows_N, self.lengths, self.part = own_RD, rows_N, lengths, part
        self.group: Any = group or dist.group.WORLD

    def shown(
        self, wanted_W: Int64[Tensor, " wanted"]
    ) -> Iterator[tuple[Int64[Tensor, " part"], Num[Tensor, "part dim"]]]:
        """Ascending numbers of some of the items wanted, and their rows; all processes ask, and are given the same."""
        stop = 0
        for source, length in enumerate(self.lengths):
            start, stop = stop, stop + length
            rows_W = self.rows_N[wanted_W]
            there_W = (rows_W >= start) & (rows_W < stop)
            items_H, rows_H = wanted_W[there_W], rows_W[there_W] - start
            for first in range(0, len(items_H), self.part):
                items_T, rows_T = items_H[first : first + self.part], rows_H[first : first + self.part]
                if source == dist.get_rank(self.group):
                    part_TD = self.own_RD[rows_T]
                else:
                    part_TD = self.own_RD.new_empty((len(rows_T), self.own_RD.shape[1]))
                dist.broadcast(part_TD, dist.get_global_rank(self.group, source), self.group)
                yield items_T, part_TD


def part_of(memory_budget: int) -> int:
    """Items of a part, whose similarities to a block of queries take a quarter of the budget."""
    return max(MIN_BLOCK, memory_budget // 4 // (SIMILARITY_BYTES * MAX_BLOCK))


def sharded_scores(
    shards: Shards,
    labels_N: Int64[Tensor, " items"],
    gallery_G: Int64[Tensor, " gallery"],
    shares: Sequence[Int64[Tensor, " share"]],
    num_relevant_N: Int64[Tensor, " items"],
    wanted: Wanted,
    *,
    similarity: Similarity,
    excludes_self: bool,
    memory_budget: int,
) -> dict[str, Float64[Tensor, " queries"]]:
    """Score this process's share of the queries, as `score_queries` does.

    The gallery is seen twice in each round of queries: the first time for the similarities to the items of the query's
    class, the second time to count those that come before each of them.

    Args:
        gallery_G: ascending numbers of the items that are searched.
        shares: each process's queries, ascending numbers of items that have a match.
        num_relevant_N: matches of each query.
        memory_budget: bytes that similarities, and the queries of a round and what is known of them, may take.
    """
    queries_Q = shares[dist.get_rank(shards.group)]
    most_relevant = int(num_relevant_N[torch.cat(list(shares))].max())
    largest_class = most_relevant + int(excludes_self)
    depth = len(gallery_G) - int(excludes_self)
    if not wanted.needs_full_ranking:
        depth = min(depth, wanted.num_neighbors(most_relevant))
    members = ClassMembers(labels_N[gallery_G])
    width = shards.own_RD.shape[1] * shards.own_RD.element_size()
    room = max(MIN_BLOCK, memory_budget // 2 // (MEMBER_BYTES * largest_class + width))
    scores: dict[str, list[Tensor]] = {name: [queries_Q.new_empty(0, dtype=torch.float64)] for name in wanted.names}
    with torch.inference_mode(), full_precision(queries_Q.device):
        for start in range(0, max(map(len, shares)), room):
            asked_W = torch.cat([share_Q[start : start + room] for share_Q in shares])
            queries_B = queries_Q[start : start + room]
            rows_BD = _rows_of(shards, queries_B, asked_W)
            if len(queries_B):
                items_BP, valid_BP = members.of(labels_N[queries_B])
                items_BP = gallery_G[items_BP]
            else:
                items_BP = queries_B.new_empty((0, 1))
                valid_BP = items_BP > 0
            if excludes_self:
                valid_BP &= items_BP != queries_B[:, None]
            own_BP, before_BP = torch.zeros_like(items_BP), torch.zeros_like(items_BP)
            for rows, items_T, keys_CT in _keys(shards, gallery_G, rows_BD, similarity):
                slots_CP = torch.searchsorted(items_T, items_BP[rows]).clamp(max=len(items_T) - 1)
                is_there_CP = items_T[slots_CP] == items_BP[rows]
                own_BP[rows] = torch.where(is_there_CP, keys_CT.gather(1, slots_CP), own_BP[rows])
            for rows, items_T, keys_CT in _keys(shards, gallery_G, rows_BD, similarity):
                if excludes_self:
                    keys_CT.masked_fill_(items_T == queries_B[rows, None], torch.iinfo(torch.int64).min)
                sorted_CV = largest_values(keys_CT, min(depth + 1, len(items_T)))
                ends_CP = torch.searchsorted(sorted_CV, own_BP[rows].contiguous(), right=True)
                before_BP[rows] += sorted_CV.shape[1] - ends_CP
            places_BP = (before_BP + 1).masked_fill(~valid_BP, depth + 1).clamp(max=depth + 1).sort(dim=1).values
            places_BP = pad(places_BP, (0, largest_class - places_BP.shape[1]), value=depth + 1)
            if len(queries_B):
                found = scores_from_places(places_BP, places_BP <= depth, num_relevant_N[queries_B], wanted)
                for name, values in found.items():
                    scores[name].append(values)
    return {name: torch.cat(values) for name, values in scores.items()}


def _rows_of(
    shards: Shards, queries_B: Int64[Tensor, " round"], asked_W: Int64[Tensor, " wanted"]
) -> Num[Tensor, "round dim"]:
    """This process's queries of a round, out of all processes' queries."""
    rows_BD = shards.own_RD.new_empty((len(queries_B), shards.own_RD.shape[1]))
    for items_T, part_TD in shards.shown(asked_W):
        mine_T = torch.isin(items_T, queries_B)
        rows_BD[torch.searchsorted(queries_B, items_T[mine_T])] = part_TD[mine_T]
    return rows_BD


def _keys(
    shards: Shards, gallery_G: Int64[Tensor, " gallery"], rows_BD: Num[Tensor, "round dim"], similarity: Similarity
) -> Iterator[tuple[slice, Int64[Tensor, " part"], Int64[Tensor, "some part"]]]:
    """Some rows, some of the gallery, and integers in the order of their similarities, no two of a row alike."""
    for items_T, part_TD in shards.shown(gallery_G):
        for start in range(0, len(rows_BD), MAX_BLOCK):
            rows = slice(start, min(start + MAX_BLOCK, len(rows_BD)))
            yield rows, items_T, tie_free_keys(similarity(rows_BD[rows], part_TD), items_T)
