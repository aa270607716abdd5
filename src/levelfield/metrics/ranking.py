"""Exact places in the similarity ranking, in bounded memory.

Shapes: Q queries, G gallery items, B queries of one block, K neighbours, P places, D dimensions.
"""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

# Matrix products of fewer rows may round differently from those of larger blocks.
MIN_BLOCK = 32


def block_starts(num_rows: int, block: int) -> list[tuple[int, int]]:
    """Cut `num_rows` into (start, stop) blocks of about `block` rows, none under 32 rows unless there are fewer."""
    num_blocks = max(1, num_rows // max(block, MIN_BLOCK))
    edges = [num_rows * i // num_blocks for i in range(num_blocks + 1)]
    return list(pairwise(edges))


def product(
    queries_BD: Float[Tensor, "block dim"], gallery_GD: Float[Tensor, "gallery dim"]
) -> Float[Tensor, "block gallery"]:
    """Inner products, rounded the same whatever the number of rows on either side."""
    num_queries, num_gallery = len(queries_BD), len(gallery_GD)
    queries_BD = torch.nn.functional.pad(queries_BD, (0, 0, 0, max(0, MIN_BLOCK - num_queries)))
    gallery_GD = torch.nn.functional.pad(gallery_GD, (0, 0, 0, max(0, MIN_BLOCK - num_gallery)))
    return (queries_BD @ gallery_GD.T)[:num_queries, :num_gallery]


def top_neighbors(
    similarities_BG: Float[Tensor, "block gallery"], num_neighbors: int
) -> Int64[Tensor, "block num_neighbors"]:
    """Indices of the largest similarities in descending order, equal ones in ascending order of index."""
    num_gallery = similarities_BG.shape[1]
    num_neighbors = min(num_neighbors, num_gallery)
    values_BK, indices_BK = similarities_BG.topk(min(num_neighbors + 1, num_gallery), dim=1)
    tied_B = (
        values_BK[:, num_neighbors - 1] == values_BK[:, num_neighbors]
        if num_neighbors < num_gallery
        else values_BK.new_zeros(len(values_BK), dtype=torch.bool)
    )
    indices_BK, by_index_BK = indices_BK[:, :num_neighbors].sort(dim=1)
    by_value_BK = values_BK.gather(1, by_index_BK).sort(dim=1, descending=True, stable=True).indices
    indices_BK = indices_BK.gather(1, by_value_BK)
    if tied_B.any():
        # topk may take any of the items that tie for the last place.
        full_TG = similarities_BG[tied_B].sort(dim=1, descending=True, stable=True).indices
        indices_BK[tied_B] = full_TG[:, :num_neighbors]
    return indices_BK


def places_from_hits(
    hits_BK: Bool[Tensor, "block num_neighbors"], max_places: int
) -> tuple[Int64[Tensor, "block places"], Bool[Tensor, "block places"]]:
    """Ascending places (1 = nearest) of the hits in a ranking, and which of the entries hold one."""
    num_places = min(max_places, hits_BK.shape[1])
    found_BP, order_BP = hits_BK.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    return order_BP[:, :num_places] + 1, found_BP[:, :num_places].bool()
