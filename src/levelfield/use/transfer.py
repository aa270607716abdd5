"""Score a checkpoint on a labelled data set: scores with intervals over its classes, and a line in the ledger.

Shapes: Q scored queries.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from levelfield.analysis.class_interval import from_sums
from levelfield.analysis.statistics import t_quantile
from levelfield.core.errors import UserError
from levelfield.core.ledger import LEDGER, Evaluation, begin, evaluations_of, finish
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.splits import IN_GROUPS, retrievable_classes
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.study.test_scores import class_sums, retrieval_sets
from levelfield.use.encoder import Encoder
from levelfield.use.samples import of_dataset

# Fewer classes give no interval.
FEWEST_CLASSES = 3


class Score(NamedTuple):
    """A score from 0 to 1, and half the width of its 95% interval over classes, or None."""

    value: float
    ci95: float | None


class Transfer(NamedTuple):
    """The scores of a checkpoint on a data set.

    Attributes:
        scores: by metric.
        num_classes: number of classes of the embedded samples.
        num_skipped: samples without another sample of their class.
        seen: classes with the name of a class that the checkpoint was trained or validated on.
        left_out: for each missing sample, why it could not be opened.
        evaluations: number of evaluations on this data set, of any checkpoint by any command.
        ledger: copy of the ledger's lines next to the checkpoint.
    """

    scores: dict[str, Score]
    num_classes: int
    num_skipped: int
    seen: tuple[str, ...]
    left_out: tuple[str, ...]
    evaluations: int
    ledger: Path


def transfer(
    encoder: Encoder,
    dataset: MetricDataset,
    folder: Path,
    skip_broken: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> Transfer:
    """Score a checkpoint on all classes of a data set.

    Args:
        folder: folder of the checkpoint; its copy of the ledger also gets a line before a label is used.
        skip_broken: leave out images that cannot be opened.
        progress: called with (finished batches, all batches).

    Raises:
        UserError: the data set has too few classes or samples, or an image cannot be opened.
    """
    index = dataset.read_index()
    _refuse_too_few(dataset, index)
    unlabelled = replace(of_dataset(dataset), labels=None)
    embedded = encoder.embed(unlabelled, skip_broken=skip_broken, progress=progress)
    kept = index.select(list(embedded.positions))
    _refuse_too_few(dataset, kept)
    samples = list(dataset.contents_of(kept.keys))
    evaluation = begin(Evaluation(dataset.name, samples, "levelfield score", encoder.hashes), folder)
    asks = _asks(kept)
    is_query = None if asks is None else torch.from_numpy(asks)
    labels = torch.from_numpy(kept.labels)
    how = encoder.distance, encoder.device, kept.groups
    scores, skipped = scores_of(embedded.embeddings, labels, is_query, *how)
    finish(evaluation, {}, folder)
    used = [kept.class_names[label] for label in np.unique(kept.labels)]
    trained = [content["levelfield"].get("data") or {} for content in encoder.checkpoints]
    learnt = {name for each in trained for part in ("train_classes", "val_classes") for name in each.get(part, ())}
    seen = tuple(name for name in used if name in learnt)
    counts = len(used), skipped
    evaluations = len(evaluations_of(samples))
    return Transfer(scores, *counts, seen, embedded.left_out, evaluations, folder / LEDGER)


def _asks(index: SampleIndex) -> Bool[np.ndarray, " samples"] | None:
    """Which samples are queries; None makes each sample a query among all others."""
    return np.array([role == "query" for role in index.roles]) if index.roles and all(index.roles) else None


def _refuse_too_few(dataset: MetricDataset, index: SampleIndex) -> None:
    found, several = len(retrievable_classes(index.labels, index.groups)), "" if index.groups is None else IN_GROUPS
    if found < 2:
        raise UserError(
            f"{dataset.name}: {found} classes have 2 or more samples{several}, 2 must: add samples or classes"
        )
    asks = _asks(index)
    if asks is not None:
        there = np.unique(index.labels[~asks])
        if len(there) < 2 or not np.isin(index.labels[asks], there).any():
            raise UserError(
                f"{dataset.name}: the gallery has {len(there)} classes; it needs 2, one of them in a query: fix the "
                "column role, or leave it out"
            )


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
