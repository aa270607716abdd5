"""Hierarchical precision: whether neighbours of another class are at least of the same coarse class.

Shapes: N queries given, Q of them scored, G gallery items, B queries of one block, K neighbours.
"""

import torch
from jaxtyping import Float64, Integer, Num
from torch import Tensor

from levelfield.metrics.counts import Hits
from levelfield.metrics.definitions import hierarchical_precision
from levelfield.metrics.distances import DISTANCES, MIN_BLOCK, check_embeddings, check_sets, prepared_sets
from levelfield.metrics.nearest import SIMILARITY_BYTES, nearest
from levelfield.metrics.ranking import DEFAULT_MEMORY_BUDGET, count_equal, tie_positions


def hierarchical_precision_at_r(
    embeddings: Num[Tensor, "queries dim"],
    labels: Integer[Tensor, " queries"],
    coarse: Integer[Tensor, " queries"],
    gallery: Num[Tensor, "gallery dim"] | None = None,
    gallery_labels: Integer[Tensor, " gallery"] | None = None,
    gallery_coarse: Integer[Tensor, " gallery"] | None = None,
    *,
    distance: str = "cosine",
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Float64[Tensor, " queries"]:
    """HP@R of each query, NaN if no other item has its class; ranks are those of `retrieval_metrics`.

    Args:
        embeddings: (N, D) floating point, any scale.
        labels: (N,) integers.
        coarse: (N,) integers, the same for all items of a class.
        gallery: (G, D) items to retrieve from; None takes the embeddings themselves.
        gallery_labels: (G,) their labels.
        gallery_coarse: (G,) their coarse classes.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`.
        memory_budget: bytes for similarities and their temporaries.

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not go together, a class in two coarse classes, or an
            unknown distance.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.2], [0.9, 0.1]])
        >>> hierarchical_precision_at_r(embeddings, torch.tensor([0, 0, 1]), torch.tensor([5, 5, 5]))
        tensor([0.5000, 0.5000,    nan], dtype=torch.float64)
    """
    check_sets(embeddings, labels, gallery, gallery_labels, distance)
    if (gallery is None) != (gallery_coarse is None):
        raise ValueError("gallery, gallery_labels and gallery_coarse go together: pass all or none")
    excludes_self = gallery is None
    check_embeddings(embeddings, coarse, "embeddings", "coarse", distance == "hamming")
    if gallery is not None and gallery_coarse is not None:
        check_embeddings(gallery, gallery_coarse, "gallery", "gallery_coarse", distance == "hamming")
    labels, coarse = labels.long(), coarse.long()  # few operators support other unsigned integers
    gallery_labels = labels if gallery_labels is None else gallery_labels.long()
    gallery_coarse = coarse if gallery_coarse is None else gallery_coarse.long()
    both = torch.stack([torch.cat([labels, gallery_labels]), torch.cat([coarse, gallery_coarse])]).unique(dim=1)
    if both.shape[1] != len(both[0].unique()):
        repeated = both[0][1:][both[0].diff() == 0]
        raise ValueError(f"the class {int(repeated[0])} is of several coarse classes")
    num_relevant_N = count_equal(labels, gallery_labels) - int(excludes_self)
    scored_Q = (num_relevant_N > 0).nonzero().squeeze(1)
    found_N = torch.full(labels.shape, torch.nan, dtype=torch.float64, device=labels.device)
    if len(scored_Q) == 0:
        return found_N
    sets = prepared_sets(embeddings, gallery, distance=distance)
    _, starts_N = tie_positions(len(sets[0]), len(sets[-1]), excludes_self, labels.device)
    depth, similarity = int(num_relevant_N.max()), DISTANCES[distance][1]
    for queries_B in scored_Q.split(max(MIN_BLOCK, memory_budget // (SIMILARITY_BYTES * len(sets[-1])))):
        itself_B = queries_B if excludes_self else None
        nearest_BK = nearest(
            sets[0][queries_B], sets[-1], depth, itself_B, similarity, memory_budget, starts_N[queries_B]
        )[1]
        within_BK = torch.arange(depth, device=labels.device) < num_relevant_N[queries_B, None]

        def hits(own_N: Tensor, theirs_G: Tensor) -> Tensor:
            return ((theirs_G[nearest_BK] == own_N[queries_B, None]) & within_BK).sum(1).double()  # noqa: B023

        found = Hits(hits(labels, gallery_labels), hits(coarse, gallery_coarse), num_relevant_N[queries_B].double())
        found_N[queries_B] = hierarchical_precision(found)
    return found_N
