"""Scores of a data set with intervals over its classes.

Shapes: Q scored queries.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from levelfield.analysis.class_interval import from_sums
from levelfield.analysis.statistics import t_quantile
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.study.test_scores import class_sums, retrieval_sets

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
    means = {metric: float(values[~values.isnan()].cpu().mean()) for metric, values in scores.items()}
    return {metric: Score(means[metric], class_interval(values, labels_Q)) for metric, values in scores.items()}


def class_interval(scores_Q: Float[Tensor, " queries"], labels_Q: Int[Tensor, " queries"]) -> float | None:
    """Half the width of the 95% interval of a mean over queries, whose classes are a sample of all possible classes.

    Queries of one class resemble each other, so the variance is that of the classes' sums with the gallery as given
    (`levelfield.analysis.class_interval`). The quantile is Student's t, with the number of classes less one.

    Source: Liang and Zeger, Longitudinal data analysis using generalized linear models, Biometrika 1986, for a mean.

    Returns:
        None for fewer than 3 classes.
    """
    of_classes = from_sums(class_sums(scores_Q, labels_Q))
    classes = len(of_classes.sums_K)
    return None if classes < FEWEST_CLASSES else t_quantile(classes - 1) * of_classes.variance() ** 0.5
