"""Hierarchical precision: whether neighbours of another class are at least of the same coarse class.

Shapes: N queries given, Q of them scored, G gallery items, B queries of one block, K neighbours.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Integer, Num
from torch import Tensor

from levelfield.metrics.checks import check_embeddings
from levelfield.metrics.distances import DISTANCES, check_sets, full_precision, prepared_sets
from levelfield.metrics.query_scores import DEFAULT_MEMORY_BUDGET, SimilarityRows, count_relevant
from levelfield.metrics.ranking import tie_free_keys
from levelfield.metrics.table import hierarchical_precision
from levelfield.metrics.ties import steps_from

# For each similarity: the value, its key and the temporaries of keys.
SIMILARITY_BYTES = 32


@dataclass(frozen=True)
class Hits:
    """What a query finds among its R nearest, where R other items are of its class.

    Attributes:
        of_class_Q: items of its class.
        of_coarse_Q: items of its coarse class, including those of its class.
        num_relevant_Q: R, at least 1.
    """

    of_class_Q: Float64[Tensor, " queries"]
    of_coarse_Q: Float64[Tensor, " queries"]
    num_relevant_Q: Float64[Tensor, " queries"]


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
    num_relevant_N = count_relevant(labels, gallery_labels, excludes_self)
    scored_Q = (num_relevant_N > 0).nonzero().squeeze(1)
    found_N = torch.full(labels.shape, torch.nan, dtype=torch.float64, device=labels.device)
    if len(scored_Q) == 0:
        return found_N
    sets = prepared_sets(embeddings, gallery, distance=distance)
    held, asked, similarity = sets[0], sets[-1], DISTANCES[distance][1]
    depth = int(num_relevant_N.max())
    bytes_a_row = SIMILARITY_BYTES * (len(asked) + depth)
    rows = SimilarityRows(held, asked, scored_Q, similarity, excludes_self, memory_budget, bytes_a_row)
    with torch.inference_mode(), full_precision(held.device):
        for positions_B, similarities_BG in rows.blocks():
            queries_B = scored_Q[positions_B]
            keys_BG = tie_free_keys(similarities_BG, steps_from(rows.starts_Q[positions_B], rows.tie_places_G))
            nearest_BK = keys_BG.topk(depth, dim=1).indices
            within_BK = torch.arange(depth, device=held.device) < num_relevant_N[queries_B, None]

            def hits(own_N: Tensor, theirs_G: Tensor) -> Tensor:
                return ((theirs_G[nearest_BK] == own_N[queries_B, None]) & within_BK).sum(1).double()  # noqa: B023

            found = Hits(hits(labels, gallery_labels), hits(coarse, gallery_coarse), num_relevant_N[queries_B].double())
            found_N[queries_B] = hierarchical_precision(found)
    return found_N
