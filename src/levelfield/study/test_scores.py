"""The test scores of a run, from the embeddings that its folds' models gave the test samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.metrics.distances import DISTANCES, unpack_signs
from levelfield.metrics.health import effective_rank
from levelfield.metrics.own import is_own, own_score
from levelfield.metrics.table import PARTITION_METRICS, SHOWN_METRICS
from levelfield.storage.atomic import write_atomically
from levelfield.training.embed import EmbeddedSet

# Samples up to which k-means runs its exact iterations; what it takes must not depend on what is installed.
EXACT_SAMPLES = 20_000
# In an untrained row's embeddings and test scores: those by one PCA of the whole training half.
ONE_PCA_KEY = "one_pca"
RANKS_KEY = "effective_rank"


class EmbeddedTest(NamedTuple):
    """A fold's embeddings of the test samples, and which of these are searched for among the others.

    `is_query` is None where each sample is searched for, among all others; `data` is the samples' fingerprint. The
    first fold of an untrained row has the embeddings by one PCA to folds x size too.
    """

    samples: EmbeddedSet
    is_query: Bool[Tensor, " samples"] | None
    data: str
    one_pca: Float[Tensor, "samples components"] | None = None

    def save(self, path: Path, origin: dict[str, str]) -> None:
        """Write `embeddings.safetensors`, with what the embeddings were made from as its metadata."""
        tensors = {**self.samples._asdict(), "is_query": self.is_query, ONE_PCA_KEY: self.one_pca}
        known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        write_atomically(path, safetensors.torch.save(known, metadata={**origin, "data": self.data}))

    @classmethod
    def load(cls, path: Path, origin: dict[str, str]) -> "EmbeddedTest | None":
        """Read what `save` wrote; None where there is nothing whole, or it was made from something else."""
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
        return cls(samples, tensors.get("is_query"), data, tensors.get(ONE_PCA_KEY))


def score_folds(folds: Sequence[EmbeddedTest], distance: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Scores of each fold's embeddings and of all folds' side by side, as in the run's `result.json`.

    Those of an untrained row's one PCA for all folds are `one_pca`. `concatenated` is empty for a single fold. The
    effective rank of each fold's embeddings tells whether they have collapsed; it is in no table of results.

    Args:
        folds: Embeddings of the same samples in the same order, by fold.
        distance: By what neighbours are ranked.
        metrics: What the study scores besides what every study does.
    """
    labels, is_query = folds[0].samples.labels, folds[0].is_query
    for other in folds[1:]:
        assert torch.equal(other.samples.index, folds[0].samples.index)
        assert torch.equal(other.samples.labels, labels)
    wanted = (*SHOWN_METRICS, *metrics)
    # Folds side by side are of unit length, where euclidean and poincare rank as cosine does.
    signs_or_cosine = "hamming" if distance == "hamming" else "cosine"

    def scores(embeddings: Tensor, by: str) -> dict[str, Any]:
        return score_samples(embeddings, labels, is_query, by, wanted)

    separated = [scores(fold.samples.embeddings, distance) for fold in folds]
    found: dict[str, Any] = {
        "separated": [{metric: float(fold[metric]) for metric in wanted} for fold in separated],
        "concatenated": {},
        "num_skipped": int(separated[0]["num_skipped"]),
        RANKS_KEY: [round(effective_rank(fold.samples.embeddings), 2) for fold in folds],
    }
    together = {} if len(folds) == 1 else {"concatenated": concatenate([fold.samples.embeddings for fold in folds])}
    together |= {} if folds[0].one_pca is None else {ONE_PCA_KEY: folds[0].one_pca}
    for key, embeddings in together.items():
        of_all = scores(embeddings, signs_or_cosine)
        found[key] = {metric: float(of_all[metric]) for metric in wanted}
    return found


def score_samples(
    embeddings: Float[Tensor, "samples embedding"],
    labels: Int[Tensor, " samples"],
    is_query: Bool[Tensor, " samples"] | None,
    distance: str = "cosine",
    metrics: Sequence[str] = tuple(SHOWN_METRICS),
) -> dict[str, Any]:
    """Scores of the queries among the rest, or of each sample among all others where there are no queries.

    Clustering scores and those of the user's own metrics are of all samples, queries or not.
    """
    own = [metric for metric in metrics if is_own(metric)]
    retrieval = [metric for metric in metrics if metric not in (*PARTITION_METRICS, *own)]
    found: dict[str, Any] = {}
    if retrieval and is_query is not None:
        gallery, gallery_labels = embeddings[~is_query], labels[~is_query]
        queries = embeddings[is_query], labels[is_query], gallery, gallery_labels
        found = retrieval_metrics(*queries, metrics=retrieval, distance=distance)
    elif retrieval:
        found = retrieval_metrics(embeddings, labels, metrics=retrieval, distance=distance)
    if clustering := [metric for metric in metrics if metric in PARTITION_METRICS]:
        method = "exact" if len(labels) <= EXACT_SAMPLES else "mini-batch"
        found |= clustering_metrics(embeddings, labels, method=method, metrics=clustering)
    if own:
        held = DISTANCES[distance][0](embeddings)
        compared = held if held.is_floating_point() else unpack_signs(held)
        found |= {metric: own_score(metric, compared, labels) for metric in own}
    return found


def concatenate(folds: Sequence[Float[Tensor, "samples embedding"]]) -> Float[Tensor, "samples folds*embedding"]:
    """Put the folds' L2-normalised embeddings side by side and normalise again."""
    return normalize(torch.cat([normalize(fold) for fold in folds], dim=1))
