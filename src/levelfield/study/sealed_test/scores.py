"""The test scores of a run, from the embeddings that its folds' models gave the test samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.metrics.health import effective_rank
from levelfield.metrics.table import PARTITION_METRICS, SHOWN_METRICS
from levelfield.storage.atomic import write_atomically
from levelfield.study.tested import ONE_PCA_KEY, RANKS_KEY
from levelfield.training.embed import EmbeddedSet

# Samples up to which k-means runs its exact iterations; what it takes must not depend on what is installed.
EXACT_SAMPLES = 20_000
QUERIES = "is_query"
DATA_KEY = "data"


class EmbeddedTest(NamedTuple):
    """A fold's embeddings of the test samples, and which of these are searched for among the others.

    `is_query` is None where each sample is searched for, among all others; `data` is the samples' fingerprint. The
    first fold of a baseline has the embeddings by one PCA to folds x size too, `one_pca`.
    """

    samples: EmbeddedSet
    is_query: Bool[Tensor, " samples"] | None
    data: str
    one_pca: Float[Tensor, "samples components"] | None = None

    def save(self, path: Path, origin: dict[str, str]) -> None:
        """Write `embeddings.safetensors`, with what the embeddings were made from as its metadata."""
        tensors = self.samples._asdict()
        if self.is_query is not None:
            tensors[QUERIES] = self.is_query
        if self.one_pca is not None:
            tensors[ONE_PCA_KEY] = self.one_pca
        write_atomically(path, safetensors.torch.save(tensors, metadata={**origin, DATA_KEY: self.data}))

    @classmethod
    def load(cls, path: Path, origin: dict[str, str]) -> "EmbeddedTest | None":
        """Read what `save` wrote; None where there is nothing, or it was made from something else.

        Raises:
            safetensors.SafetensorError: the file is damaged.
        """
        if not path.exists():
            return None
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            data = metadata.pop(DATA_KEY, "")
            if metadata != origin:
                return None
            samples = EmbeddedSet(*(file.get_tensor(name) for name in EmbeddedSet._fields))
            is_query = file.get_tensor(QUERIES) if QUERIES in file.keys() else None  # noqa: SIM118 # no dict
            one_pca = file.get_tensor(ONE_PCA_KEY) if ONE_PCA_KEY in file.keys() else None  # noqa: SIM118
            return cls(samples, is_query, data, one_pca)


def score_run(folds: list[EmbeddedTest], distance: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Scores of each fold's embeddings and of all folds' side by side, as in the run's `result.json`.

    Those of a baseline's one PCA for all folds come as `one_pca`, where there is one. One model has nothing beside
    it: its `concatenated` is empty. The effective rank of each fold's embeddings tells whether they have collapsed; it
    is in no table of results.

    Args:
        folds: Embeddings of the same samples in the same order, by fold.
        distance: By what neighbours are ranked.
        metrics: What the study scores beside what every study does.
    """
    labels, is_query = folds[0].samples.labels, folds[0].is_query
    for other in folds[1:]:
        assert torch.equal(other.samples.index, folds[0].samples.index)
        assert torch.equal(other.samples.labels, labels)
    wanted = (*SHOWN_METRICS, *metrics)
    separated = [score_samples(fold.samples.embeddings, labels, is_query, distance, wanted) for fold in folds]
    # Folds side by side are of unit length, where euclidean and poincare rank as cosine does.
    signs_or_cosine = "hamming" if distance == "hamming" else "cosine"
    found: dict[str, Any] = {
        "separated": [{metric: float(fold[metric]) for metric in wanted} for fold in separated],
        "concatenated": {},
        "num_skipped": int(separated[0]["num_skipped"]),
        RANKS_KEY: [round(effective_rank(fold.samples.embeddings), 2) for fold in folds],
    }
    if len(folds) > 1:
        together = concatenate([fold.samples.embeddings for fold in folds])
        concatenated = score_samples(together, labels, is_query, signs_or_cosine, wanted)
        found["concatenated"] = {metric: float(concatenated[metric]) for metric in wanted}
    if folds[0].one_pca is not None:
        scores = score_samples(folds[0].one_pca, labels, is_query, signs_or_cosine, wanted)
        found[ONE_PCA_KEY] = {metric: float(scores[metric]) for metric in wanted}
    return found


def score_samples(
    embeddings: Float[Tensor, "samples embedding"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[Tensor, " samples"] | None,
    distance: str = "cosine",
    metrics: Sequence[str] = tuple(SHOWN_METRICS),
) -> dict[str, Any]:
    """Scores of the queries among the rest, or of each sample among all others where there are no queries.

    Clustering scores are those of all samples, queries or not.
    """
    retrieval = [metric for metric in metrics if metric not in PARTITION_METRICS]
    if is_query is None:
        found: dict[str, Any] = retrieval_metrics(embeddings, labels, metrics=retrieval, distance=distance)
    else:
        gallery, gallery_labels = embeddings[~is_query], labels[~is_query]
        asked = embeddings[is_query], labels[is_query], gallery, gallery_labels
        found = retrieval_metrics(*asked, metrics=retrieval, distance=distance)
    if clustering := [metric for metric in metrics if metric in PARTITION_METRICS]:
        method = "exact" if len(labels) <= EXACT_SAMPLES else "mini-batch"
        found |= clustering_metrics(embeddings, labels, method=method, metrics=clustering)
    return found


def concatenate(folds: list[Float[Tensor, "samples embedding"]]) -> Float[Tensor, "samples folds*embedding"]:
    """Put the folds' L2-normalised embeddings side by side and normalise again."""
    return normalize(torch.cat([normalize(fold) for fold in folds], dim=1))
