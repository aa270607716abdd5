"""Hierarchical precision: whether neighbours of another class are at least of the same coarse class.

Shapes: N queries given, Q of them scored, G gallery items, K neighbours.
"""

import torch
from jaxtyping import Float64, Integer, Num
from torch import Tensor

from levelfield.metrics.definitions import hierarchical_precision
from levelfield.metrics.distances import DISTANCES, check_embeddings, check_sets, prepared_sets
from levelfield.metrics.nearest import nearest
from levelfield.metrics.ranking import DEFAULT_MEMORY_BUDGET, ClassMembers, tie_positions


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
        memory_budget: bytes for similarities and their temporaries; neighbours take Q K numbers beside it.

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
    packed = distance == "hamming"
    check_embeddings(embeddings, coarse, "embeddings", "coarse", packed=packed)
    if gallery is not None and gallery_coarse is not None:
        check_embeddings(gallery, gallery_coarse, "gallery", "gallery_coarse", packed=packed)
    labels, coarse = labels.long(), coarse.long()  # few operators support other unsigned integers
    gallery_labels = labels if gallery_labels is None else gallery_labels.long()
    gallery_coarse = coarse if gallery_coarse is None else gallery_coarse.long()
    both = torch.stack([torch.cat([labels, gallery_labels]), torch.cat([coarse, gallery_coarse])]).unique(dim=1)
    if both.shape[1] != len(both[0].unique()):
        repeated = both[0][1:][both[0].diff() == 0]
        raise ValueError(f"the class {int(repeated[0])} is of several coarse classes")
    num_relevant_N = ClassMembers(gallery_labels).count(labels) - int(excludes_self)
    scored_Q = (num_relevant_N > 0).nonzero().squeeze(1)
    found_N = torch.full(labels.shape, torch.nan, dtype=torch.float64, device=labels.device)
    if len(scored_Q) == 0:
        return found_N
    sets = prepared_sets(embeddings, gallery, distance=distance)
    _, starts_N = tie_positions(len(sets[0]), len(sets[-1]), excludes_self, labels.device)
    depth, itself_Q = int(num_relevant_N.max()), scored_Q if excludes_self else None
    similarity, starts_Q = DISTANCES[distance][1], starts_N[scored_Q]
    nearest_QK = nearest(sets[0][scored_Q], sets[-1], depth, itself_Q, similarity, memory_budget, starts_Q)[1]
    num_relevant_Q = num_relevant_N[scored_Q]
    within_QK = torch.arange(depth, device=labels.device) < num_relevant_Q[:, None]

    def hits(own_N: Tensor, theirs_G: Tensor) -> Tensor:
        return ((theirs_G[nearest_QK] == own_N[scored_Q, None]) & within_QK).sum(1).double()

    of_class_Q, of_coarse_Q = hits(labels, gallery_labels), hits(coarse, gallery_coarse)
    return found_N.index_copy_(0, scored_Q, hierarchical_precision(of_class_Q, of_coarse_Q, num_relevant_Q.double()))
