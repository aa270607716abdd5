"""Retrieval scores that accumulate over batches and processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Float64, Int64, Integer
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

from levelfield.core.labels import Labels, LabelSets
from levelfield.metrics.definitions import SHOWN_METRICS, Wanted, is_user_metric
from levelfield.metrics.distances import DISTANCES, at_one_scale, check_embeddings, unpack_signs
from levelfield.metrics.ranking import Ranking
from levelfield.metrics.user_metric import user_score

# The k of `recall`.
RECALL_AT = (1, 2, 4, 8)
# Types of the states.
DTYPES = {"embeddings": torch.float32, "labels": torch.int64, "index": torch.int64, "finite": torch.uint8}


class NotFinite(ValueError):  # noqa: N818 as in its message
    """Embeddings have NaN or infinite values in float32."""


class RetrievalMetrics(Metric):
    """`retrieval_metrics` over an epoch, exact on one process or many.

    Each process adds the embeddings it has computed, with their index in the data set. `compute` drops repeats of an
    index, which come from a padded sampler. Each process scores its share of the queries against a copy of all
    embeddings. All processes return the same numbers.

    Args:
        metrics: names as in `retrieval_metrics`; `recall` is that at 1, 2, 4 and 8. A name with a dot is your own
            function, `my_metric.hubness`. It gets all embeddings as the distance compares them: unit vectors for
            cosine, signs for hamming.
        num_samples: number of different samples that the epoch must have; None does not check it.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`, as in `retrieval_metrics`.
        is_query: which samples are queries, by their index in the data set; the others are the gallery. None
            compares each with all others.
        groups: a number of each sample, such as its camera, by its index in the data set: samples with the query's
            label and group leave its gallery.
        num_labels: L, if labels are label sets, (B, L) boolean, where samples match that share a label; None for one
            label a sample.
        **kwargs: `torchmetrics.Metric`'s own.

    Attributes:
        query_scores: by metric, the scores of the queries with a match that `compute` has averaged; (Q,) float64.
        query_labels: (Q,) their labels, or (Q, L) label sets.

    Raises:
        ValueError: at `update`, shapes that do not match; at `compute`, on every process, embeddings that are not
            finite, no samples, or not `num_samples` of them.

    Example:
        >>> metric = RetrievalMetrics(metrics=("map_at_r",), num_samples=4)
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> metric.update(embeddings, torch.tensor([0, 0, 1, 1]), torch.arange(4))
        >>> metric.compute()
        {'map_at_r': 1.0, 'num_skipped': 0}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    embeddings: list[Tensor]
    labels: list[Tensor]
    index: list[Tensor]
    finite: list[Tensor]  # of each embedding, looked at once, in `compute`: each look waits for a GPU

    def __init__(
        self,
        metrics: Sequence[str] = tuple(SHOWN_METRICS),
        num_samples: int | None = None,
        distance: str = "cosine",
        is_query: Bool[np.ndarray, " samples"] | None = None,
        groups: Int64[np.ndarray, " samples"] | None = None,
        num_labels: int | None = None,
        **kwargs: Any,
    ) -> None:
        # `compute` gathers from the other processes itself, only what it needs.
        super().__init__(**{"sync_on_compute": False, **kwargs})
        self.user_metrics = [] if isinstance(metrics, str) else [name for name in metrics if is_user_metric(name)]
        shipped = [name for name in metrics if name not in self.user_metrics] if self.user_metrics else metrics
        self.wanted = Wanted.parse(shipped, "queries", RECALL_AT) if shipped or not self.user_metrics else Wanted({})
        self.num_samples = num_samples
        if distance not in DISTANCES:
            raise ValueError(f"no such distance {distance!r}; known are {', '.join(DISTANCES)}")
        self.distance = distance
        self.is_query = None if is_query is None else torch.as_tensor(is_query)
        self.groups = None if groups is None else torch.as_tensor(groups)
        self.num_labels, self.label_shape = num_labels, () if num_labels is None else (num_labels,)
        self.query_scores: dict[str, Float64[Tensor, " queries"]] = {}
        self.query_labels: Labels | LabelSets = torch.empty(0, dtype=torch.int64)
        for state in DTYPES:
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Labels | LabelSets,
        index: Integer[Tensor, " batch"],
    ) -> None:
        """Add a batch: (B, D) embeddings of any floating type, (B,) labels, (B,) indices in the data set."""
        check_embeddings(embeddings, labels, takes_sets=True, look=False)
        if labels.shape[1:] != self.label_shape:
            raise ValueError(f"labels are of shape {tuple(labels.shape)}, but num_labels={self.num_labels}")
        if index.shape != labels.shape[:1] or index.is_floating_point():
            raise ValueError(f"index must hold {len(labels)} integers, not {index.dtype} {tuple(index.shape)}")
        prepared = DISTANCES[self.distance][0](embeddings)
        # Signs hide what is not finite, and float32 has a smaller range than the embeddings may have.
        finite = torch.isfinite(embeddings).all(dim=1) & torch.isfinite(prepared).all(dim=1)
        self.finite.append(finite.to(torch.uint8))
        self.embeddings.append(prepared)
        # Not every backend sends booleans.
        self.labels.append(labels.detach().to(torch.uint8 if self.label_shape else torch.int64))
        self.index.append(index.detach().long().to(labels.device))

    def compute(self) -> dict[str, float]:
        """Means by metric, and `num_skipped`; the same on every process."""
        states = [self._state(name) for name in DTYPES]
        shared = dist.is_available() and dist.is_initialized()
        group = self.process_group
        rank, num_processes = (dist.get_rank(group), dist.get_world_size(group)) if shared else (0, 1)
        if shared and not self._is_synced:
            states = [gather_rows(rows, group) for rows in states]
        embeddings, labels, index, finite = states
        labels = labels.bool() if self.label_shape else labels
        if len(index) == 0:
            raise ValueError("RetrievalMetrics.compute before any update")
        if not finite.all():
            bad = index[finite == 0].tolist()
            raise NotFinite(f"{len(bad)} of {len(index)} embeddings have NaN or infinite values: samples {bad[:5]}")
        first = first_of_each(index)
        if self.num_samples is not None and len(first) != self.num_samples:
            raise ValueError(
                f"{len(first)} different samples were scored, {self.num_samples} were expected; "
                "look at the sampler, and at whether `index` is the index in the data set"
            )
        if not torch.equal(first, torch.arange(len(index), device=first.device)):  # indexing copies all embeddings
            embeddings, labels, index = embeddings[first], labels[first], index[first]
        parts = [embeddings, labels] + ([] if self.groups is None else [self.groups.to(index.device)[index]])
        asks = None if self.is_query is None else self.is_query.to(index.device)[index]
        (queries, gallery), (query_labels, gallery_labels), *grouped = (
            (part, part) if asks is None else (part[asks], part[~asks]) for part in parts
        )
        if self.distance == "euclidean":
            queries, gallery = (each.float() for each in at_one_scale(queries, gallery))
        ranking = Ranking(queries, query_labels, gallery, gallery_labels, self.distance, asks is None, *grouped)
        matched = ranking.matched_Q
        compared = embeddings if embeddings.is_floating_point() or not self.user_metrics else unpack_signs(embeddings)
        by_user = {name: user_score(name, compared, labels) for name in self.user_metrics}
        num_skipped = len(queries) - len(matched)
        if not self.wanted.rows:
            return {**by_user, "num_skipped": num_skipped}
        start, end = (len(matched) * r // num_processes for r in (rank, rank + 1))
        scores = ranking.score(matched[start:end], self.wanted)
        scores_QM = torch.stack([scores[name] for name in self.wanted.rows], dim=1)
        if shared:  # scores, not sums: the mean equals that of one process to the last bit
            scores_QM = gather_rows(scores_QM, group)
        self.query_labels = query_labels[matched]
        self.query_scores = dict(zip(self.wanted.rows, scores_QM.T.contiguous(), strict=True))
        found = {name: float(values.sum() / len(matched)) for name, values in self.query_scores.items()}
        return {**found, **by_user, "num_skipped": num_skipped}

    def _state(self, state: str) -> Tensor:
        if len(rows := getattr(self, state)):  # a list, or a tensor once torchmetrics has gathered it
            return dim_zero_cat(rows)
        bits = (state == "embeddings" and self.distance == "hamming") or (state == "labels" and self.label_shape)
        shape = {"embeddings": (0,), "labels": self.label_shape}.get(state, ())
        return torch.empty((0, *shape), dtype=torch.uint8 if bits else DTYPES[state], device=self.device)


def first_of_each(index_N: Int64[Tensor, " items"]) -> Int64[Tensor, " unique"]:
    """Positions of the first occurrence of each value, ordered by value."""
    return torch.from_numpy(np.unique(index_N.cpu().numpy(), return_index=True)[1]).to(index_N.device)


def gather_rows(rows: Tensor, group: Any = None) -> Tensor:
    """The rows of all processes."""
    return torch.cat([each for each in gather_all_tensors(rows, group) if len(each)] or [rows])
