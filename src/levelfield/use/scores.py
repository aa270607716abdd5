"""Scores of a data set with intervals over its classes.

Shapes: Q scored queries.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from levelfield.analysis.statistics import t_quantile
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.study.test_scores import retrieval_sets

# Fewer classes give no interval.
FEWEST_CLASSES = 3


class Score(NamedTuple):
    """A score from 0 to 1, and half the width of its 95% interval over classes, or None."""

    value: float
    ci95: float | None


def scores_of(
    embeddings: Float[Tensor, "samples dim"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[Tensor, " samples"] | None = None,
    distance: str = "cosine",
    device: torch.device | str | None = None,
    groups: Int[np.ndarray, " samples"] | None = None,
) -> tuple[dict[str, Score], int]:
    """The usual retrieval scores, with intervals, and clustering scores; the number of queries that were left out.

    Args:
        is_query: which samples are queries; None makes each sample a query among all others.
        distance: as in `retrieval_metrics`.
        device: for retrieval; None is that of the embeddings.
        groups: samples of the query's class and group leave its gallery.
    """
    sets = retrieval_sets(embeddings, labels, is_query, device, groups)
    found: Any = retrieval_metrics(**sets, distance=distance, per_query=True)
    skipped = int(found.pop("num_skipped"))
    clustered = {metric: Score(value, None) for metric, value in clustering_metrics(embeddings, labels).items()}
    return with_intervals(found, sets["labels"]) | clustered, skipped


def with_intervals(
    scores: Mapping[str, Float[Tensor, " queries"]], labels_Q: Int[Tensor, " queries"]
) -> dict[str, Score]:
    """The mean of the scores of queries by metric, NaN for queries left out, with its interval."""
    found = {}
    for metric, values in scores.items():
        scored = ~values.isnan()
        of_queries = values[scored].cpu(), labels_Q[scored].cpu()
        found[metric] = Score(float(of_queries[0].mean()), class_interval(*of_queries))
    return found


def class_interval(scores_Q: Float[Tensor, " queries"], labels_Q: Int[Tensor, " queries"]) -> float | None:
    """Half the width of the 95% interval of a mean over queries, whose classes are a sample of all possible classes.

    With C classes, Q queries and mean m, the variance is C / (C - 1) sum over c of (sum of s - m over the queries of
    c)^2 / Q^2, because queries of one class resemble each other. The quantile is Student's t, C - 1 degrees of freedom.

    Source: Liang and Zeger, Longitudinal data analysis using generalized linear models, Biometrika 1986, for a mean.

    Returns:
        None for fewer than 3 classes.
    """
    _, place_Q = labels_Q.unique(return_inverse=True)
    num_classes = int(place_Q.max()) + 1
    if num_classes < FEWEST_CLASSES:
        return None
    errors_Q = scores_Q.double() - scores_Q.double().mean()
    sums_C = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, place_Q, errors_Q)
    variance = num_classes / (num_classes - 1) * float(sums_C.square().sum()) / len(scores_Q) ** 2
    return t_quantile(num_classes - 1) * math.sqrt(variance)
