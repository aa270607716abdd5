"""Exact retrieval scores of an embedding space in bounded memory.

Shapes: Q queries, G gallery items, S scored queries.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Integer, Num
from torch import Tensor

from levelfield.core.labels import Labels, LabelSets
from levelfield.core.seeds import seed_of
from levelfield.metrics.definitions import Wanted
from levelfield.metrics.distances import check_sets, prepared_sets
from levelfield.metrics.ranking import Ranking


def retrieval_metrics(
    embeddings: Num[Tensor, "queries dim"],
    labels: Labels | LabelSets,
    gallery: Num[Tensor, "gallery dim"] | None = None,
    gallery_labels: Labels | LabelSets | None = None,
    metrics: Iterable[str] | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    *,
    distance: str = "cosine",
    per_query: bool = False,
    num_queries: int | None = None,
    seed: int = 0,
    memory_budget: int | None = None,
    groups: Integer[Tensor, " queries"] | None = None,
    gallery_groups: Integer[Tensor, " gallery"] | None = None,
) -> dict[str, float] | dict[str, Tensor]:
    """Score how well each embedding retrieves the others that share its label.

    Without a gallery each embedding is a query against all others and never retrieves itself. Equal similarities are
    ranked in an order that depends on no label (`levelfield.metrics.ranking`), so collapsed embeddings score as by
    chance. A query without another item of its label is left out of the means.

    Args:
        embeddings: (N, D) floating point, any scale; converted to float32.
        labels: (N,) integers, any values; or label sets, (N, L) boolean, where items match that share a label.
        gallery: (G, D) items to retrieve from; None takes the embeddings themselves.
        gallery_labels: (G,) their labels.
        metrics: any of `map_at_r`, `r_precision`, `precision_at_1`, `recall` (all of `recall_at`), `recall_at_<k>`,
            `map` (full ranking), `map_at_<n>` (ranking cut at n neighbours), `ndcg_at_<n>` (which counts the labels
            that two sets share) and `mrr`; None for the first four, `map` and `mrr`.
        recall_at: the k of recall@k.
        distance: `cosine`; `euclidean`, for embeddings that are not normalised; `hamming`, on signs packed into bits,
            ceil(D / 8) bytes an item (uint8 means that they are packed already, see `pack_bits`); `poincare`, of raw
            embeddings mapped into the ball of `HyperbolicCrossEntropyLoss`.
        per_query: return the score of each query instead of the mean, NaN for the queries left out.
        num_queries: score a random sample of the queries that have a match, and add `<metric>_ci95`, half the width of
            the mean's 95% interval (normal approximation, for a sample without replacement).
        seed: of that sample.
        memory_budget: bytes for similarities and their temporaries, in addition to a float32 copy of the embeddings;
            None takes 400 MiB, on a GPU a quarter of its free memory.
        groups: (N,) integers, such as cameras: items with the query's label and group leave its gallery, as in
            re-identification.
        gallery_groups: (G,) those of a gallery.

    Returns:
        Fractions between 0 and 1 by metric, and `num_skipped`, the number of queries without a match.

    Raises:
        ValueError: empty or non-finite embeddings, shapes that do not match, labels that are not integers, fewer
            than two labels, an unknown metric or distance, or no query with a match.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> retrieval_metrics(embeddings, torch.tensor([0, 0, 1, 1]), metrics=("map_at_r",))
        {'map_at_r': 1.0, 'num_skipped': 0}

    Source: Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2.
    """
    wanted = Wanted.parse(metrics, "queries", recall_at)
    if num_queries is not None and num_queries < 2:
        raise ValueError(f"num_queries={num_queries}: an interval needs at least 2")
    check_sets(embeddings, labels, gallery, gallery_labels, distance, takes_sets=True)
    prepared = prepared_sets(embeddings, gallery, distance=distance)
    if groups is not None and gallery is None:
        gallery_groups = groups
    for name, given, count in (("groups", groups, len(labels)), ("gallery_groups", gallery_groups, len(prepared[-1]))):
        if (given is None) != (groups is None) or (given is not None and given.shape != (count,)):
            raise ValueError(f"{name} must hold {count} integers, one for each item; for both sets or none")
    both = None if groups is None or gallery_groups is None else (groups, gallery_groups)
    own_or_theirs = labels if gallery_labels is None else gallery_labels
    ranking = Ranking(prepared[0], labels, prepared[-1], own_or_theirs, distance, gallery is None, both)
    scored, num_matched = ranking.matched_Q, len(ranking.matched_Q)
    if num_queries is not None:
        generator = torch.Generator().manual_seed(seed_of("queries", seed))
        drawn = torch.randperm(num_matched, generator=generator)[:num_queries]
        scored = scored[drawn.sort().values.to(scored.device)]
    scores = ranking.score(scored, wanted, memory_budget)
    if per_query:
        padded: dict[str, Tensor] = {"num_skipped": torch.tensor(len(labels) - num_matched)}
        for name, values in scores.items():
            padded[name] = values.new_full((len(labels),), torch.nan).index_copy_(0, scored, values)
        return padded
    means: dict[str, float] = {name: values.mean().item() for name, values in scores.items()}
    if num_queries is not None:
        means |= {f"{name}_ci95": half_interval(values, num_matched) for name, values in scores.items()}
    return {**means, "num_skipped": len(labels) - num_matched}


def half_interval(scores_S: Float[Tensor, " sampled"], population: int) -> float:
    """Half the width of the 95% interval of the mean of `population` scores, of which these were drawn."""
    num_sampled = len(scores_S)
    if num_sampled == population:
        return 0.0
    return 1.959964 * float(scores_S.std() / num_sampled**0.5) * (1 - num_sampled / population) ** 0.5
