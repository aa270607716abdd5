"""Scores of single queries, by the cheapest way of ranking for them.

Shapes: N queries given, Q of them scored, G gallery items, B queries of one block, P items with the query's label,
D dimensions.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int64, Integer, Num
from torch import Tensor
from torch.nn.functional import pad

from levelfield.metrics.counting import counted_places, counting_block
from levelfield.metrics.distances import full_precision, product
from levelfield.metrics.ranking import ClassMembers, Similarity, block_starts, places_of, symmetric_blocks
from levelfield.metrics.scores import Wanted, scores_from_places
from levelfield.metrics.ties import tie_places

DEFAULT_MEMORY_BUDGET = 400 * 2**20
# Larger blocks are not faster.
MAX_BLOCK = 512
# For each item of the class: places, precisions and their temporaries, in int64 and float64.
MEMBER_BYTES = 120


def score_queries(
    queries_ND: Num[Tensor, "queries dim"],
    query_labels_N: Integer[Tensor, " queries"],
    gallery_GD: Num[Tensor, "gallery dim"],
    gallery_labels_G: Integer[Tensor, " gallery"],
    scored_Q: Int64[Tensor, " scored"],
    num_relevant_N: Int64[Tensor, " queries"],
    wanted: Wanted,
    *,
    similarity: Similarity = product,
    excludes_self: bool,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> dict[str, Float64[Tensor, " scored"]]:
    """Score the queries `scored_Q`, each of which has a match.

    Args:
        scored_Q: ascending positions of the queries to score.
        num_relevant_N: matches of each query, as `count_relevant` gives them.
        similarity: of two blocks, symmetric.
        excludes_self: the queries are the gallery, and none retrieves itself.
        memory_budget: bytes for similarities and their temporaries.
    """
    scores = {name: torch.zeros(len(scored_Q), dtype=torch.float64, device=queries_ND.device) for name in wanted.names}
    if len(scored_Q) == 0:
        return scores
    num_relevant_Q = num_relevant_N[scored_Q]
    query_labels_Q = query_labels_N[scored_Q]
    num_gallery = len(gallery_GD)
    depth = num_gallery
    if not wanted.needs_full_ranking:
        depth = min(depth, wanted.num_neighbors(int(num_relevant_Q.max())))
    largest_class = int(num_relevant_Q.max()) + int(excludes_self)
    # Float32 similarities, their sorted values down to the depth, and temporaries for each item of a class.
    bytes_a_row = 4 * num_gallery + 4 * (depth + 1) + MEMBER_BYTES * largest_class
    rows = SimilarityRows(queries_ND, gallery_GD, scored_Q, similarity, excludes_self, memory_budget, bytes_a_row)

    def keep(positions_B: Tensor, places_BP: Tensor, found_BP: Tensor) -> None:
        if not rows.mirrored:  # equal widths, so that sums are rounded alike
            room = (0, largest_class - places_BP.shape[1])
            places_BP, found_BP = pad(places_BP, room), pad(found_BP, room)
        block = scores_from_places(places_BP, found_BP, num_relevant_Q[positions_B], wanted)
        for name in wanted.names:
            scores[name][positions_B] = block[name]

    with torch.inference_mode(), full_precision(queries_ND.device):
        if block := counting_block(num_relevant_N, memory_budget) if rows.is_half_enough else 0:
            places_QP, found_QP = counted_places(gallery_GD, gallery_labels_G, similarity, block)
            positions_Q = torch.arange(len(scored_Q), device=scored_Q.device)
            for positions_B in positions_Q.split(MAX_BLOCK):
                queries_B = scored_Q[positions_B]
                keep(positions_B, places_QP[queries_B], found_QP[queries_B])
            return scores
        members = ClassMembers(gallery_labels_G)
        for positions_B, similarities_BG in rows.blocks():
            items_BP, valid_BP = members.of(query_labels_Q[positions_B])
            if excludes_self:
                valid_BP = valid_BP & (items_BP != scored_Q[positions_B, None])
            starts_B = rows.starts_Q[positions_B]
            places_BP = places_of(similarities_BG, items_BP, valid_BP, depth, starts_B, rows.tie_places_G)
            keep(positions_B, places_BP, places_BP <= depth)
    return scores


class SimilarityRows:
    """Rows of similarities of the scored queries to the whole gallery, a block at a time.

    If most of a set is scored against itself and half of its matrix fits the budget, only blocks on and above the
    diagonal are computed.

    Attributes:
        tie_places_G: the items' places on the circle of `levelfield.metrics.ties`.
        starts_Q: the scored queries' places; queries outside the gallery are numbered after it.
    """

    def __init__(
        self,
        queries_ND: Num[Tensor, "queries dim"],
        gallery_GD: Num[Tensor, "gallery dim"],
        scored_Q: Int64[Tensor, " scored"],
        similarity: Similarity,
        excludes_self: bool,
        memory_budget: int,
        bytes_a_row: int,
    ) -> None:
        self.queries_ND, self.gallery_GD, self.scored_Q = queries_ND, gallery_GD, scored_Q
        self.similarity, self.excludes_self = similarity, excludes_self
        num_gallery = len(gallery_GD)
        self.is_half_enough = excludes_self and 2 * len(scored_Q) > num_gallery
        # Half of the matrix, as float32, in half of the budget.
        self.mirrored = self.is_half_enough and 4 * num_gallery**2 <= memory_budget
        places = tie_places(num_gallery + (0 if excludes_self else len(queries_ND)), gallery_GD.device)
        self.tie_places_G = places[:num_gallery]
        self.starts_Q = (places if excludes_self else places[num_gallery:])[scored_Q]
        self.block = min(MAX_BLOCK, memory_budget // (2 if self.mirrored else 1) // bytes_a_row)

    def blocks(self) -> Iterator[tuple[Int64[Tensor, " block"], Float[Tensor, "block gallery"]]]:
        """Positions in `scored_Q` and their rows, -inf for a query with itself. The next block may overwrite them."""
        if self.mirrored:
            yield from self.mirrored_blocks()
            return
        positions_Q = torch.arange(len(self.scored_Q), device=self.scored_Q.device)
        # New memory for each block would add a tenth to the time of the product, by page faults.
        buffer_BG = torch.empty((0, 0), dtype=torch.float32, device=self.gallery_GD.device)
        for start, stop in block_starts(len(positions_Q), self.block):
            positions_B = positions_Q[start:stop]
            queries_B = self.scored_Q[positions_B]
            if len(buffer_BG) < stop - start:
                buffer_BG = buffer_BG.new_empty((stop - start, len(self.gallery_GD)))
            similarities_BG = buffer_BG[: stop - start]
            self.similarity(self.queries_ND[queries_B], self.gallery_GD, out=similarities_BG)
            if self.excludes_self:
                similarities_BG.scatter_(1, queries_B[:, None], -torch.inf)
            yield positions_B, similarities_BG

    def mirrored_blocks(self) -> Iterator[tuple[Int64[Tensor, " block"], Float[Tensor, "block gallery"]]]:
        for start, stop, similarities_BG in symmetric_blocks(self.gallery_GD, self.block, self.similarity):
            similarities_BG[:, start:stop].fill_diagonal_(-torch.inf)
            inside = (self.scored_Q >= start) & (self.scored_Q < stop)
            positions_B = inside.nonzero().squeeze(1)
            if len(positions_B) < stop - start:
                similarities_BG = similarities_BG[self.scored_Q[positions_B] - start]
            if len(positions_B):
                yield positions_B, similarities_BG


def count_relevant(
    query_labels_N: Integer[Tensor, " queries"], gallery_labels_G: Integer[Tensor, " gallery"], excludes_self: bool
) -> Int64[Tensor, " queries"]:
    """Number of gallery items with each query's label, without the query itself if `excludes_self`."""
    if len(gallery_labels_G) == 0:
        return torch.zeros_like(query_labels_N)
    classes_C, counts_C = gallery_labels_G.unique(return_counts=True)
    slots_N = torch.searchsorted(classes_C, query_labels_N.contiguous()).clamp(max=len(classes_C) - 1)
    counts_N = torch.where(classes_C[slots_N] == query_labels_N, counts_C[slots_N], 0)
    return counts_N - int(excludes_self)
