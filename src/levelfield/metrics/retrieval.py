"""Exact retrieval scores of an embedding space in bounded memory.

Shapes: Q queries, G gallery items, B queries of one block, D dimensions.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Tensor

from levelfield.metrics.ranking import block_starts, places_from_hits, product, top_neighbors
from levelfield.metrics.scores import Wanted, scores_from_places

DEFAULT_MEMORY_BUDGET = 256 * 2**20


def retrieval_metrics(
    embeddings: Float[Tensor, "queries dim"],
    labels: Integer[Tensor, " queries"],
    gallery: Float[Tensor, "gallery dim"] | None = None,
    gallery_labels: Integer[Tensor, " gallery"] | None = None,
    metrics: Iterable[str] | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    *,
    per_query: bool = False,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> dict[str, float] | dict[str, Tensor]:
    """Score how well each embedding retrieves the others that share its label.

    Similarity is the cosine. Without a gallery each embedding is a query against all others and never retrieves itself.
    Equal similarities are ranked by index. A query whose label no (other) gallery item has is left out of the means.

    Args:
        embeddings: (N, D) floating point, any scale; converted to float32.
        labels: (N,) integers, any values.
        gallery: (G, D) items to retrieve from, where they are not the embeddings themselves.
        gallery_labels: (G,) their labels.
        metrics: any of `map_at_r`, `r_precision`, `precision_at_1`, `recall` (all of `recall_at`), `recall_at_<k>`,
            `map` (full ranking), `map_at_<n>` (ranking cut at n neighbours) and `mrr`; None for the first four, `map`
            and `mrr`.
        recall_at: the k of recall@k.
        per_query: return the score of each query instead of the mean, NaN for the queries left out.
        memory_budget: bytes that the similarity blocks may take at a time.

    Returns:
        Fractions between 0 and 1 by metric, and `num_skipped`, the number of queries left out.

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not go together, labels that are not integers, fewer
            than two labels, an unknown metric, or no query with a match.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> retrieval_metrics(embeddings, torch.tensor([0, 0, 1, 1]), metrics=("map_at_r",))
        {'map_at_r': 1.0, 'num_skipped': 0}

    Source: Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2.
    """
    wanted = Wanted.parse(metrics, recall_at)
    check_embeddings(embeddings, labels, "embeddings", "labels")
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: pass both or neither")
    if gallery is not None and gallery_labels is not None:
        check_embeddings(gallery, gallery_labels, "gallery", "gallery_labels")
        if gallery.shape[1] != embeddings.shape[1]:
            raise ValueError(f"gallery has {gallery.shape[1]} dimensions, embeddings have {embeddings.shape[1]}")
    queries = normalize(embeddings)
    scores, num_relevant = score_queries(
        queries,
        labels,
        queries if gallery is None else normalize(gallery),
        labels if gallery_labels is None else gallery_labels,
        query_index=torch.arange(len(labels), device=labels.device) if gallery is None else None,
        wanted=wanted,
        memory_budget=memory_budget,
    )
    left_out = num_relevant == 0
    if left_out.all():
        raise ValueError(f"none of the {len(labels)} queries shares its label with another item of the gallery")
    if per_query:
        padded: dict[str, Tensor] = {"num_skipped": left_out.sum()}
        for name, values in scores.items():
            padded[name] = values.new_full((len(labels),), torch.nan).masked_scatter_(~left_out, values)
        return padded
    means: dict[str, float] = {name: values.mean().item() for name, values in scores.items()}
    return {**means, "num_skipped": int(left_out.sum())}


def check_embeddings(embeddings: Tensor, labels: Tensor, name: str, labels_name: str) -> None:
    """Raise ValueError unless `embeddings` is a finite (N, D) float tensor and `labels` its N integers."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise ValueError(
            f"{name} must be floating point of shape (N, D), not {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{labels_name} must be integers of shape (N,), not {labels.dtype} {tuple(labels.shape)}")
    if len(embeddings) != len(labels):
        raise ValueError(f"{len(embeddings)} {name} but {len(labels)} {labels_name}")
    if embeddings.numel() == 0:
        raise ValueError(f"{name} is empty: shape {tuple(embeddings.shape)}")
    finite_N = torch.isfinite(embeddings).all(dim=1)
    if not finite_N.all():
        row = int((~finite_N).nonzero()[0])
        raise ValueError(
            f"{int((~finite_N).sum())} of {len(embeddings)} {name} have NaN or infinite values, the first is row {row}"
        )


def normalize(embeddings: Float[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """Rows of length 1 in float32; a row of zeros stays zero."""
    return torch.nn.functional.normalize(embeddings.detach().float(), dim=1)


def score_queries(
    queries_QD: Float[Tensor, "queries dim"],
    query_labels_Q: Integer[Tensor, " queries"],
    gallery_GD: Float[Tensor, "gallery dim"],
    gallery_labels_G: Integer[Tensor, " gallery"],
    query_index: Int64[Tensor, " queries"] | None,
    wanted: Wanted,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> tuple[dict[str, Float64[Tensor, " scored"]], Int64[Tensor, " queries"]]:
    """Scores of the queries that have a match, in order, and each query's number of matches.

    Args:
        queries_QD: (Q, D) float32 of length 1.
        query_labels_Q: (Q,) integers.
        gallery_GD: (G, D) float32 of length 1.
        gallery_labels_G: (G,) integers.
        query_index: (Q,) place of each query in the gallery, which it never retrieves; None where it is not there.
        wanted: which scores.
        memory_budget: bytes for similarity blocks.

    Raises:
        ValueError: the gallery has a single label.
    """
    num_relevant_Q = count_relevant(query_labels_Q, gallery_labels_G, excludes_self=query_index is not None)
    if bool((gallery_labels_G == gallery_labels_G[0]).all()):
        raise ValueError(
            f"all {len(gallery_labels_G)} gallery items have the label {int(gallery_labels_G[0])}; two are needed"
        )
    scored = (num_relevant_Q > 0).nonzero().squeeze(1)
    max_relevant = int(num_relevant_Q.max()) if len(scored) else 0
    num_gallery = len(gallery_labels_G)
    everything = wanted.needs_all_places or wanted.needs_first_place
    num_neighbors = num_gallery if everything else wanted.num_neighbors(max_relevant)
    num_neighbors = min(num_neighbors, num_gallery - (query_index is not None))

    bytes_per_row = num_gallery * (4 if not everything else 4 + 8 + 8 + 8)
    blocks: list[dict[str, Tensor]] = []
    if len(scored) == 0:
        return {
            name: torch.zeros(0, dtype=torch.float64, device=queries_QD.device) for name in wanted.names
        }, num_relevant_Q
    for start, stop in block_starts(len(scored), memory_budget // bytes_per_row):
        rows = scored[start:stop]
        similarities_BG = product(queries_QD[rows], gallery_GD)
        if query_index is not None:
            similarities_BG.scatter_(1, query_index[rows, None], -torch.inf)
        neighbors_BK = top_neighbors(similarities_BG, num_neighbors)
        hits_BK: Bool[Tensor, "block neighbors"] = gallery_labels_G[neighbors_BK] == query_labels_Q[rows, None]
        places_BP, found_BP = places_from_hits(hits_BK, max_relevant)
        blocks.append(scores_from_places(places_BP, found_BP, num_relevant_Q[rows], wanted))
    return {name: torch.cat([block[name] for block in blocks]) for name in wanted.names}, num_relevant_Q


def count_relevant(
    query_labels_Q: Integer[Tensor, " queries"],
    gallery_labels_G: Integer[Tensor, " gallery"],
    excludes_self: bool,
) -> Int64[Tensor, " queries"]:
    """Number of gallery items with each query's label, without the query itself where it is one of them."""
    classes_C, counts_C = gallery_labels_G.unique(return_counts=True)
    slots_Q = torch.searchsorted(classes_C, query_labels_Q.contiguous()).clamp(max=len(classes_C) - 1)
    counts_Q = torch.where(classes_C[slots_Q] == query_labels_Q, counts_C[slots_Q], 0)
    return counts_Q - int(excludes_self)
