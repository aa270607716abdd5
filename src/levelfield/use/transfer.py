"""How well a checkpoint serves another labelled set: scores with intervals, and a line in the ledger.

Shapes: Q scored queries.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from levelfield.analysis.statistics import t_quantile
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.storage.ledger import Ledger
from levelfield.use.encoder import Encoder
from levelfield.use.samples import of_dataset

# Fewer classes than this say nothing of others.
FEWEST_CLASSES = 3


class Score(NamedTuple):
    """A score from 0 to 1, and half the width of its 95% interval over classes; None where there is none."""

    value: float
    ci95: float | None


class Transfer(NamedTuple):
    """What a checkpoint scores on another set.

    Attributes:
        scores: by metric.
        num_classes: of the samples that were embedded.
        num_samples: likewise.
        num_skipped: queries that have no other sample of their class to be found.
        seen: classes that are called like one that the checkpoint was trained or validated on.
        left_out: why each sample that is missing could not be opened.
        times: how often the checkpoint has scored this set by now.
        ledger: where each time is recorded.
    """

    scores: dict[str, Score]
    num_classes: int
    num_samples: int
    num_skipped: int
    seen: tuple[str, ...]
    left_out: tuple[str, ...]
    times: int
    ledger: Path


def transfer(
    encoder: Encoder,
    dataset: MetricDataset,
    folder: Path,
    skip_broken: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> Transfer:
    """Score a checkpoint on all classes of another data set.

    Args:
        folder: of the checkpoint; `ledger.jsonl` in it gets a line before a label is used.
        skip_broken: leave out the pictures that cannot be opened.
        progress: called with (batches done, batches in all).

    Raises:
        UserError: the set is the checkpoint's own, whose unseen classes only `test` opens; it has too few classes or
            samples; or a picture cannot be opened.
    """
    index = dataset.read_index()
    _refuse_its_own(encoder, dataset, index)
    _refuse_too_few(dataset, index.labels)
    embedded = encoder.embed(of_dataset(dataset), skip_broken=skip_broken, progress=progress)
    kept = index.select(list(embedded.positions))
    _refuse_too_few(dataset, kept.labels)
    listed = [list(kept.keys), [kept.class_names[label] for label in kept.labels], kept.roles]
    ledger = Ledger(folder)
    named = {path.name if len(encoder.paths) == 1 else f"{path.parent.name}/{path.name}" for path in encoder.paths}
    times = ledger.transfer(
        dataset.name,
        hashlib.sha256(json.dumps(listed).encode()).hexdigest(),
        dict(zip(sorted(named), encoder.hash, strict=True)),
    )
    is_query = None
    if kept.roles and all(kept.roles):
        is_query = torch.tensor([role == "query" for role in kept.roles])
    scores, skipped = scores_of(embedded.embeddings, torch.from_numpy(kept.labels), is_query, encoder.distance)
    used = [kept.class_names[label] for label in np.unique(kept.labels)]
    learnt = _learnt(encoder)
    seen = tuple(name for name in used if name in learnt)
    return Transfer(scores, len(used), len(kept.keys), skipped, seen, embedded.left_out, times, ledger.path)


def scores_of(
    embeddings: Float[Tensor, "samples dim"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[Tensor, " samples"] | None = None,
    distance: str = "cosine",
    metrics: Sequence[str] | None = None,
) -> tuple[dict[str, Score], int]:
    """Scores, the retrieval ones with intervals, and the number of queries that were left out.

    Args:
        is_query: which samples are searched for among the others; None searches for each among all others.
        distance: of `retrieval_metrics`.
        metrics: retrieval metrics; None takes every usual one, and those of a clustering.
    """
    asked, gallery = (embeddings, labels), dict[str, Any]()
    if is_query is not None:
        asked = (embeddings[is_query], labels[is_query])
        gallery = {"gallery": embeddings[~is_query], "gallery_labels": labels[~is_query]}
    found = retrieval_metrics(*asked, **gallery, metrics=metrics, distance=distance, per_query=True)
    skipped = int(found.pop("num_skipped"))
    scores = {}
    for metric, values in found.items():
        assert isinstance(values, Tensor)
        scored = ~values.isnan()
        scores[metric] = Score(float(values[scored].mean()), class_interval(values[scored], asked[1][scored]))
    clustered = {} if metrics is not None else clustering_metrics(embeddings, labels)
    return scores | {metric: Score(value, None) for metric, value in clustered.items()}, skipped


def class_interval(scores_Q: Float[Tensor, " queries"], labels_Q: Int[Tensor, " queries"]) -> float | None:
    """Half the width of the 95% interval of the mean of queries, whose classes are a sample of all that there could be.

    With C classes, Q queries and mean m, the variance is C / (C - 1) sum over c of (sum of s - m over the queries of
    c)^2 / Q^2, and the quantile Student's with C - 1 degrees of freedom: queries of one class resemble each other.

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


def _learnt(encoder: Encoder) -> set[str]:
    """Names of the classes that the checkpoint was trained or validated on."""
    data = [content["levelfield"].get("data") or {} for content in encoder.checkpoints]
    return {name for each in data for part in ("train_classes", "val_classes") for name in each.get(part, ())}


def _refuse_its_own(encoder: Encoder, dataset: MetricDataset, index: SampleIndex) -> None:
    learnt = _learnt(encoder)
    fingerprints = {(content["levelfield"].get("data") or {}).get("fingerprint") for content in encoder.checkpoints}
    if learnt and learnt <= set(index.class_names):
        names = np.array(index.class_names, dtype=object)
        trained = index.select(np.isin(names[index.labels], list(learnt)))
        if dataset.fingerprint(trained) in fingerprints:
            raise UserError(
                f"'{encoder.origin}' was trained on this data set: levelfield test scores its unseen classes, and "
                "records that they were opened; score takes another set"
            )


def _refuse_too_few(dataset: MetricDataset, labels: Int[np.ndarray, " samples"]) -> None:
    found = int((np.unique(labels, return_counts=True)[1] >= 2).sum())
    if found < 2:
        raise UserError(f"{dataset.name}: {found} classes have 2 samples or more and 2 must: add samples or classes")
