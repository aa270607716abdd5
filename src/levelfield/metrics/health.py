"""Health of an embedding space, cheap enough for every epoch.

Shapes: N embeddings, D dimensions, C classes.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Integer, Num
from torch import Tensor

from levelfield.metrics.distances import check_embeddings, normalize


@dataclass(frozen=True)
class EmbeddingHealth:
    """Spread of an embedding space.

    Attributes:
        intra_class_similarity: mean cosine of the pairs that share a label, over all pairs.
        inter_class_similarity: mean cosine of the pairs that do not, over all pairs.
        effective_rank: exp of the entropy of the normalised singular values of the L2-normalised embeddings, between 1
            (collapsed to a line) and D.
        spectrum: their normalised singular values in descending order, which sum to 1; its fall is the spectral decay.
    """

    intra_class_similarity: float
    inter_class_similarity: float
    effective_rank: float
    spectrum: Float64[Tensor, " dim"]


def embedding_health(embeddings: Num[Tensor, "items dim"], labels: Integer[Tensor, " items"]) -> EmbeddingHealth:
    """Measure the spread of (N, D) embeddings, L2-normalised first, in O(N D^2).

    The means over all pairs come from sums: those of a class's members add up to |sum of the class|^2.

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not go together, fewer than two labels, or no two
            items with the same label.

    Source: Roy and Vetterli, The Effective Rank, EUSIPCO 2007.
    """
    check_embeddings(embeddings, labels)
    unit_ND = normalize(embeddings)
    _, slots_N, counts_C = labels.unique(return_inverse=True, return_counts=True)
    num_items, num_classes = len(labels), len(counts_C)
    if num_classes in (1, num_items):
        raise ValueError(f"{num_items} items with {num_classes} labels have no pairs of both kinds")
    exact_ND = unit_ND.double()
    sums_CD = exact_ND.new_zeros(num_classes, exact_ND.shape[1]).index_add_(0, slots_N, exact_ND)
    own = exact_ND.square().sum()
    intra = sums_CD.square().sum() - own
    everything = sums_CD.sum(dim=0).square().sum() - own
    num_intra = int((counts_C * (counts_C - 1)).sum())
    num_inter = num_items * (num_items - 1) - num_intra

    spectrum_D = _spectrum(exact_ND.T @ exact_ND)
    return EmbeddingHealth(
        intra_class_similarity=float(intra / num_intra),
        inter_class_similarity=float((everything - intra) / num_inter),
        effective_rank=_rank_of(spectrum_D),
        spectrum=spectrum_D,
    )


def effective_rank(embeddings: Num[Tensor, "items dim"]) -> float:
    """`EmbeddingHealth.effective_rank` of (N, D) embeddings, in O(N D min(N, D)); 1 if all are 0."""
    unit_ND = normalize(embeddings).double()
    return _rank_of(_spectrum(unit_ND.T @ unit_ND if len(unit_ND) > unit_ND.shape[1] else unit_ND @ unit_ND.T))


def _spectrum(products_DD: Float64[Tensor, "dim dim"]) -> Float64[Tensor, " dim"]:
    singular_D = torch.linalg.eigvalsh(products_DD).flip(0).clamp(min=0).sqrt()
    return singular_D / singular_D.sum().clamp_min(torch.finfo(torch.float64).tiny)


def _rank_of(spectrum_D: Float64[Tensor, " dim"]) -> float:
    return float(torch.special.entr(spectrum_D).sum().exp())
