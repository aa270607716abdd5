"""Scores of single queries, by the cheapest way of ranking for them.

Shapes: N queries given, Q of them scored, G gallery items, B queries of one block, P items with the query's label,
D dimensions.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float, Float64, Int64, Integer, Num
from torch import Tensor
from torch.nn.functional import pad

from levelfield.metrics.counting import counted_places, counting_block
from levelfield.metrics.distances import full_precision, product
from levelfield.metrics.ranking import ClassMembers, Similarity, block_starts, group_size, places_of
from levelfield.metrics.scores import Wanted, scores_from_places
from levelfield.metrics.threads import Each, by_threads, in_turn, num_shares
from levelfield.metrics.ties import tie_places

DEFAULT_MEMORY_BUDGET = 400 * 2**20
# Part of a GPU's free memory that is the default there.
FREE_SHARE = 4
# Larger blocks are not faster. On a GPU smaller ones would wait for the starts of their operations.
MAX_BLOCK, MAX_GPU_VALUES = 512, 2**28
# Columns of a product at a time on the CPU.
COLUMNS = 1024
# For each item of the class: places, precisions and their temporaries, in int64 and float64.
MEMBER_BYTES = 120
# For each value that a GPU selects: its column, its copies and a sort's.
SELECTED_BYTES = 32
# Below it copies of a half cost as much as the other half of a product.
LEAST_MIRRORED_DIM = 256


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
    memory_budget: int | None = None,
) -> dict[str, Float64[Tensor, " scored"]]:
    """Score the queries `scored_Q`, each of which has a match.

    Args:
        scored_Q: ascending positions of the queries to score.
        num_relevant_N: matches of each query, as `count_relevant` gives them.
        similarity: of two blocks, symmetric.
        excludes_self: the queries are the gallery, and none retrieves itself.
        memory_budget: bytes for similarities and their temporaries; None takes `default_memory_budget`.
    """
    if memory_budget is None:
        memory_budget = default_memory_budget(queries_ND.device)
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
    if queries_ND.device.type != "cpu":
        bytes_a_row += SELECTED_BYTES * depth * (1 + group_size(num_gallery, depth))
    rows = SimilarityRows(queries_ND, gallery_GD, scored_Q, similarity, excludes_self, memory_budget, bytes_a_row)

    def keep(positions_B: Tensor, places_BP: Tensor, found_BP: Tensor) -> None:
        block = scores_from_places(places_BP, found_BP, num_relevant_Q[positions_B], wanted)
        for name in wanted.names:
            scores[name][positions_B] = block[name]

    threads = by_threads(queries_ND.device, len(scored_Q) * gallery_GD.numel())
    with torch.inference_mode(), full_precision(queries_ND.device), threads as each:
        if block := counting_block(num_relevant_N, memory_budget, max_mean_counted(rows, wanted.needs_full_ranking)):
            places_QP, found_QP = counted_places(gallery_GD, gallery_labels_G, similarity, block, each)
            positions_Q = torch.arange(len(scored_Q), device=scored_Q.device)
            room = (0, largest_class - places_QP.shape[1])  # sums are rounded as those of rows
            for positions_B in positions_Q.split(MAX_BLOCK):
                queries_B = scored_Q[positions_B]
                keep(positions_B, pad(places_QP[queries_B], room), pad(found_QP[queries_B], room))
            return scores
        members = ClassMembers(gallery_labels_G)

        def score(part: tuple[Tensor, Tensor]) -> None:
            positions_B, similarities_BG = part
            items_BP, valid_BP = members.of(query_labels_Q[positions_B], largest_class)
            if excludes_self:
                valid_BP = valid_BP & (items_BP != scored_Q[positions_B, None])
            starts_B = rows.starts_Q[positions_B]
            places_BP = places_of(similarities_BG, items_BP, valid_BP, depth, starts_B, rows.tie_places_G)
            keep(positions_B, places_BP, places_BP <= depth)

        shares = num_shares(queries_ND.device)
        if rows.mirrored:  # a block needs those before it
            for positions_B, similarities_BG in rows.blocks(each):
                each(score, zip(positions_B.tensor_split(shares), similarities_BG.tensor_split(shares), strict=True))
        else:  # what a core has computed stays in its cache
            each(lambda share: in_turn(score, rows.blocks(share=share, shares=shares)), range(shares))
    return scores


def max_mean_counted(rows: "SimilarityRows", needs_full_ranking: bool) -> float:
    """Mean number of matches up to which counting is faster. Its time grows with it, and it needs half of the products.

    On a GPU selection is faster by far.
    """
    if not rows.is_half_enough:
        return 0
    if needs_full_ranking:
        return 12
    if rows.mirrored or rows.gallery_GD.device.type != "cpu":
        return 0
    return 1 + rows.gallery_GD.shape[1] / 100 if rows.similarity is product else 12


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
        # At most a quarter of the matrix is kept, as float32.
        kept_bytes = num_gallery**2
        pays = similarity is not product or queries_ND.shape[1] >= LEAST_MIRRORED_DIM
        self.mirrored = self.is_half_enough and pays and kept_bytes <= memory_budget * 3 // 4
        places = tie_places(num_gallery + (0 if excludes_self else len(queries_ND)), gallery_GD.device)
        self.tie_places_G = places[:num_gallery]
        self.starts_Q = (places if excludes_self else places[num_gallery:])[scored_Q]
        most = MAX_BLOCK if gallery_GD.device.type == "cpu" else MAX_GPU_VALUES // num_gallery
        self.block = min(most, (memory_budget - (kept_bytes if self.mirrored else 0)) // bytes_a_row)

    def blocks(
        self, each: Each = in_turn, share: int = 0, shares: int = 1
    ) -> Iterator[tuple[Int64[Tensor, " block"], Float[Tensor, "block gallery"]]]:
        """Positions in `scored_Q` and their rows, -inf for a query with itself. The next block overwrites them.

        Args:
            each: does the parts of a block.
            share: which blocks: every `shares`-th from this one. They share the memory of one block.
        """
        num_gallery, device = len(self.gallery_GD), self.gallery_GD.device
        width, threads = num_gallery, num_shares(device)
        if device.type == "cpu":  # narrow results stay in the cache: 100 GFLOPS a core instead of 85
            width = -(-num_gallery // (threads * math.ceil(num_gallery / (threads * COLUMNS))))
        rows_N = torch.arange(num_gallery, device=device) if self.mirrored else self.scored_Q
        edges = block_starts(len(rows_N), max(1, self.block // shares))[share::shares]
        columns = edges if self.mirrored else block_starts(num_gallery, width)
        cuts = edges
        if self.mirrored:  # one wait of a GPU for all blocks
            cuts = torch.searchsorted(self.scored_Q, torch.tensor(edges, device=device)).tolist()
        # New memory for each block would add a tenth to the time of the product, by page faults.
        height = max((stop - start for start, stop in edges), default=0)
        buffer_BG = torch.empty((height, num_gallery), dtype=torch.float32, device=device)
        transposes: dict[tuple[int, int], Tensor] = {}

        def fill(queries_BD: Tensor, i: int, k: int) -> None:
            part_BT = buffer_BG[: len(queries_BD), slice(*columns[k])]
            if (i, k) in transposes:
                part_BT.copy_(transposes.pop((i, k)))
                return
            self.similarity(queries_BD, self.gallery_GD[slice(*columns[k])], out=part_BT)
            if self.mirrored and k > i:
                transposes[k, i] = part_BT.contiguous().T.contiguous()  # fast from one contiguous tensor to another

        for i, ((start, stop), (first, end)) in enumerate(zip(edges, cuts, strict=True)):
            each(partial(fill, self.queries_ND[rows_N[start:stop]], i), range(len(columns)))
            positions_B = torch.arange(first, end, device=device)
            rows_BG = buffer_BG[: stop - start]
            if len(positions_B) < len(rows_BG):
                rows_BG = rows_BG[self.scored_Q[positions_B] - start]
            if self.excludes_self:
                rows_BG.scatter_(1, self.scored_Q[positions_B, None], -torch.inf)
            if len(positions_B):
                yield positions_B, rows_BG


def default_memory_budget(device: torch.device) -> int:
    """400 MiB; on a GPU a quarter of the memory that is free or that torch holds unused."""
    if device.type != "cuda":
        return DEFAULT_MEMORY_BUDGET
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + unused) // FREE_SHARE


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
