"""The test scores of a run, from the test embeddings of its folds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.core.files import write_atomically
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.metrics.definitions import PARTITION_METRICS, SHOWN_METRICS, is_user_metric
from levelfield.metrics.distances import DISTANCES, unpack_signs
from levelfield.metrics.health import effective_rank
from levelfield.metrics.user_metric import user_score
from levelfield.training.embed import EmbeddedSet


class EmbeddedTest(NamedTuple):
    """The test embeddings of a fold, which samples are queries, and their groups.

    If `is_query` is None, each sample is a query among all others. Samples of the query's class and group leave its
    gallery. `data` is the fingerprint of the samples.
    """

    samples: EmbeddedSet
    is_query: Bool[Tensor, " samples"] | None
    data: str
    groups: Int[Tensor, " samples"] | None = None

    def save(self, path: Path, origin: dict[str, str]) -> None:
        """Write `tested.safetensors`, with the origin of the embeddings as metadata."""
        tensors = {**self.samples._asdict(), "is_query": self.is_query, "groups": self.groups}
        known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        write_atomically(path, safetensors.torch.save(known, metadata={**origin, "data": self.data}))

    @classmethod
    def load(cls, path: Path, origin: dict[str, str]) -> "EmbeddedTest | None":
        """Read the file of `save`; None if it is missing, incomplete or of another origin."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 # no dict
        except (FileNotFoundError, SafetensorError):
            return None
        data = metadata.pop("data", "")
        if metadata != origin:
            return None
        samples = EmbeddedSet(*(tensors[name] for name in EmbeddedSet._fields))
        return cls(samples, tensors.get("is_query"), data, tensors.get("groups"))


def score_folds(
    folds: Sequence[EmbeddedTest], distance: str, metrics: Sequence[str], device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Scores of each fold's embeddings and of the concatenated ones, as in the `result.json` of a run.

    `concatenated` is empty for a single fold. The effective rank of each fold's embeddings detects a collapse; no table
    of results has it.

    Args:
        folds: Embeddings of the same samples in the same order, by fold.
        distance: Distance for retrieval.
        metrics: Further metrics of the study.
        device: For retrieval.
    """
    first, wanted = folds[0], (*SHOWN_METRICS, *metrics)
    for other in folds[1:]:
        assert torch.equal(other.samples.index, first.samples.index)
        assert torch.equal(other.samples.labels, first.samples.labels)

    def scores(embeddings: Tensor, by: str) -> dict[str, Any]:
        return score_samples(embeddings, first.samples.labels, first.is_query, by, wanted, device, first.groups)

    separated = [scores(fold.samples.embeddings, distance) for fold in folds]
    together: dict[str, Any] = {}
    if len(folds) > 1:  # of unit length, so euclidean and poincare rank like cosine
        by = "hamming" if distance == "hamming" else "cosine"
        together = scores(concatenate([fold.samples.embeddings for fold in folds]), by)
    return {
        "separated": [{metric: float(fold[metric]) for metric in wanted} for fold in separated],
        "concatenated": {metric: float(together[metric]) for metric in wanted if together},
        "num_skipped": int(separated[0]["num_skipped"]),
        "effective_rank": [round(effective_rank(fold.samples.embeddings), 2) for fold in folds],
    }


def score_samples(
    embeddings: Float[Tensor, "samples embedding"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[Tensor, " samples"] | None,
    distance: str = "cosine",
    metrics: Sequence[str] = tuple(SHOWN_METRICS),
    device: torch.device | str | None = None,
    groups: Int[Tensor | np.ndarray, " samples"] | None = None,
) -> dict[str, Any]:
    """Scores of the queries among the other samples, or of each sample among all others without queries.

    Clustering scores and the user's own metrics take all samples, as they are.

    Args:
        device: for retrieval; None is that of the embeddings.
        groups: samples of the query's class and group leave its gallery.
    """
    own = [metric for metric in metrics if is_user_metric(metric)]
    clustering = [metric for metric in metrics if metric in PARTITION_METRICS]
    retrieval = [metric for metric in metrics if metric not in (*clustering, *own)]
    found: dict[str, Any] = {}
    if retrieval:
        sets = retrieval_sets(embeddings, labels, is_query, device, groups)
        found = retrieval_metrics(**sets, metrics=retrieval, distance=distance)
    if clustering:
        found |= clustering_metrics(embeddings, labels, metrics=clustering)
    for metric in own:
        held = DISTANCES[distance][0](embeddings)
        found[metric] = user_score(metric, held if held.is_floating_point() else unpack_signs(held), labels)
    return found


def class_sums(scores_Q: Float[Tensor, " queries"], labels_Q: Int[Tensor, " queries"]) -> list[list[float]]:
    """`[sum, number]` of the scores of each class, in the order of the labels.

    A query without a match (NaN) is left out, and so is a class that has no other.
    """
    scores_Q, labels_Q = scores_Q.double().cpu(), labels_Q.cpu()
    is_scored_Q = ~scores_Q.isnan()
    _, slots_Q, numbers_K = labels_Q[is_scored_Q].unique(return_inverse=True, return_counts=True)
    sums_K = torch.bincount(slots_Q, scores_Q[is_scored_Q])
    return [[float(total), int(number)] for total, number in zip(sums_K, numbers_K, strict=True)]


def retrieval_sets(
    embeddings: Float[Tensor, "samples embedding"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[Tensor, " samples"] | None,
    device: torch.device | str | None = None,
    groups: Int[Tensor | np.ndarray, " samples"] | None = None,
) -> dict[str, Any]:
    """The sets that `retrieval_metrics` takes: all samples, or queries and gallery, on a device."""
    sets = {"embeddings": embeddings, "labels": labels}
    if groups is not None:
        sets["groups"] = torch.as_tensor(groups)
    if is_query is not None:
        gallery = {f"gallery_{name}".removesuffix("_embeddings"): each[~is_query] for name, each in sets.items()}
        sets = {name: each[is_query] for name, each in sets.items()} | gallery
    return {name: each.to(device or embeddings.device) for name, each in sets.items()}


def concatenate(folds: Sequence[Float[Tensor, "samples embedding"]]) -> Float[Tensor, "samples folds*embedding"]:
    """One embedding unchanged; several as concatenated unit vectors, normalized again."""
    if len(folds) == 1:
        return folds[0]
    return normalize(torch.cat([normalize(fold) for fold in folds], dim=1))
