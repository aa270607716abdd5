"""The nearest items of each query, by any distance, in bounded memory.

Shapes: N queries, G gallery items, B queries of one block, K neighbours.
"""

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from levelfield.metrics.distances import Similarity, full_precision, product
from levelfield.metrics.ranking import block_starts, default_memory_budget, tie_free_keys, tie_positions

# For each similarity: the value, its key, and the selected ones.
SIMILARITY_BYTES = 32


def nearest(
    queries_ND: Num[Tensor, "queries any"],
    gallery_GD: Num[Tensor, "gallery any"],
    count: int,
    itself_N: Int64[Tensor, " queries"] | None = None,
    similarity: Similarity = product,
    memory_budget: int | None = None,
    starts_N: Int64[Tensor, " queries"] | None = None,
) -> tuple[Float[Tensor, "queries neighbors"], Int64[Tensor, "queries neighbors"]]:
    """Similarities and numbers of the nearest items, nearest first.

    Equal similarities come in the order of `levelfield.metrics.ranking`. Queries that are not in the gallery all start
    at position 0, so a query finds the same items alone and among others.

    Args:
        queries_ND: in the form of the distance (`DISTANCES`), like the gallery.
        count: K, the number of items; all if there are fewer.
        itself_N: each query's own number in the gallery, which it does not retrieve; None if it has none.
        similarity: function of two sets in this form.
        memory_budget: bytes for similarities and their temporaries; None takes `default_memory_budget`.
        starts_N: other positions of the queries in the order of equal similarities.
    """
    count = min(count, len(gallery_GD) - (itself_N is not None))
    similarities_NK = torch.empty((len(queries_ND), count), dtype=torch.float32, device=queries_ND.device)
    items_NK = torch.empty(similarities_NK.shape, dtype=torch.int64, device=queries_ND.device)
    positions_G, starts_G = tie_positions(0, len(gallery_GD), True, queries_ND.device)
    if starts_N is None:
        starts_N = starts_G[:1].expand(len(queries_ND)) if itself_N is None else starts_G[itself_N]
    block = (memory_budget or default_memory_budget(gallery_GD.device)) // (SIMILARITY_BYTES * len(gallery_GD))
    with full_precision(queries_ND.device):
        for start, stop in block_starts(len(queries_ND), block):
            similarities_BG = similarity(queries_ND[start:stop], gallery_GD)
            if itself_N is not None:
                similarities_BG.scatter_(1, itself_N[start:stop, None], -torch.inf)
            keys_BG = tie_free_keys(similarities_BG, starts_N[start:stop], positions_G)
            items_NK[start:stop] = keys_BG.topk(count, dim=1).indices
            similarities_NK[start:stop] = similarities_BG.gather(1, items_NK[start:stop])
    return similarities_NK, items_NK
