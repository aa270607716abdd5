"""Retrieval scores that accumulate over batches and processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from levelfield.metrics.checks import check_embeddings
from levelfield.metrics.distances import DISTANCES, at_one_scale
from levelfield.metrics.query_scores import count_relevant, score_queries
from levelfield.metrics.scores import Wanted
from levelfield.metrics.table import SHOWN_METRICS

# What states hold, the type that a process without data hands in first.
DTYPES = (torch.float32, torch.int64, torch.uint8)


class RetrievalMetrics(Metric):
    """`retrieval_metrics` over an epoch, exact on one process or many.

    Each process hands in the embeddings it has computed together with their index in the data set. At `compute` all
    processes gather all embeddings, drop repeats of an index (a padded sampler brings them), order by index, and each
    scores its share of the queries against everything. All processes return the same numbers.

    Args:
        metrics: names as in `retrieval_metrics`; `recall` is that at 1, 2, 4 and 8.
        num_samples: how many different samples the epoch must bring; None leaves that unchecked.
        distance: `cosine`, `euclidean` or `hamming`, as in `retrieval_metrics`.
        is_query: which samples are searched for, by their index in the data set, among those that are not; None
            searches for each among all others.
        **kwargs: `torchmetrics.Metric`'s own.

    Raises:
        ValueError: at `update`, shapes that do not go together or non-finite embeddings; at `compute`, on every
            process, no samples, or another number of them than `num_samples`.

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

    def __init__(
        self,
        metrics: Sequence[str] = tuple(SHOWN_METRICS),
        num_samples: int | None = None,
        distance: str = "cosine",
        is_query: Bool[np.ndarray, " samples"] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dist_sync_fn": gather_rows, **kwargs})
        self.wanted = Wanted.parse(metrics)
        self.num_samples = num_samples
        if distance not in DISTANCES:
            raise ValueError(f"no such distance {distance!r}; known are {', '.join(DISTANCES)}")
        self.distance = distance
        self.is_query = None if is_query is None else torch.as_tensor(is_query)
        for state in ("embeddings", "labels", "index"):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        index: Integer[Tensor, " batch"],
    ) -> None:
        """Add a batch: (B, D) embeddings of any floating type, (B,) labels, (B,) indices in the data set."""
        check_embeddings(embeddings, labels, "embeddings", "labels")
        if index.shape != labels.shape or index.is_floating_point():
            raise ValueError(f"index must hold {len(labels)} integers, not {index.dtype} {tuple(index.shape)}")
        held = DISTANCES[self.distance][0](embeddings)
        if held.is_floating_point() and not torch.isfinite(held).all():
            raise ValueError(f"embeddings reach {float(embeddings.abs().max()):.0e}, beyond float32; divide them first")
        self.embeddings.append(held)
        self.labels.append(labels.detach().long())
        self.index.append(index.detach().long().to(labels.device))

    def compute(self) -> dict[str, float]:
        """Means by metric, and `num_skipped`; the same on every process."""
        embeddings, labels, index = (dim_zero_cat(state) for state in (self.embeddings, self.labels, self.index))
        if len(index) == 0:
            raise ValueError("RetrievalMetrics.compute before any update")
        first = first_of_each(index)
        if self.num_samples is not None and len(first) != self.num_samples:
            raise ValueError(
                f"{len(first)} different samples were scored, {self.num_samples} were expected; "
                "look at the sampler, and at whether `index` is the index in the data set"
            )
        queries, query_labels = gallery, gallery_labels = embeddings[first], labels[first]
        if self.is_query is not None:
            asks = self.is_query.to(index.device)[index[first]]
            queries, query_labels = queries[asks], query_labels[asks]
            gallery, gallery_labels = gallery[~asks], gallery_labels[~asks]

        if self.distance == "euclidean":
            queries, gallery = (scaled.float() for scaled in at_one_scale(queries, gallery))

        shared = self._is_synced and dist.is_available() and dist.is_initialized()
        rank = dist.get_rank(self.process_group) if shared else 0
        num_processes = dist.get_world_size(self.process_group) if shared else 1
        excludes_self = self.is_query is None
        num_relevant = count_relevant(query_labels, gallery_labels, excludes_self)
        scored = (num_relevant > 0).nonzero().squeeze(1)
        if len(scored) == 0:
            raise ValueError(f"none of the {len(queries)} samples shares its label with another")
        if bool((gallery_labels == gallery_labels[0]).all()):
            raise ValueError(
                f"all {len(gallery)} samples have the label {int(gallery_labels[0])}; two labels are needed"
            )
        share = scored[len(scored) * rank // num_processes : len(scored) * (rank + 1) // num_processes]
        scores = score_queries(
            queries,
            query_labels,
            gallery,
            gallery_labels,
            share,
            num_relevant,
            self.wanted,
            similarity=DISTANCES[self.distance][1],
            excludes_self=excludes_self,
        )
        sums = torch.stack([scores[name].sum() for name in self.wanted.names])
        if shared:
            dist.all_reduce(sums, group=self.process_group)
        means = (sums / len(scored)).tolist()
        return {**dict(zip(self.wanted.names, means, strict=True)), "num_skipped": len(queries) - len(scored)}


def first_of_each(index_N: Int64[Tensor, " items"]) -> Int64[Tensor, " unique"]:
    """Positions of the first occurrence of each value, ordered by value."""
    sorted_N, order_N = index_N.sort(stable=True)
    is_first_N = torch.ones_like(sorted_N, dtype=torch.bool)
    is_first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    return order_N[is_first_N]


def gather_rows(rows: Tensor, group: Any = None) -> list[Tensor]:
    """All processes' tensors, whose first dimensions may differ; a process without data hands in an empty one.

    A process that saw no batch knows neither type nor width, so these are agreed on first.
    """
    has_width = rows.ndim == 2
    mine = torch.tensor([len(rows), rows.shape[1] if has_width else 0, DTYPES.index(rows.dtype)], device=rows.device)
    shapes = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shapes, mine, group=group)
    lengths, widths, dtypes = torch.stack(shapes).unbind(1)
    width = int(widths.max())
    dtype = DTYPES[int(dtypes.max())]
    padded = rows.new_zeros((int(lengths.max()), width) if width else (int(lengths.max()),), dtype=dtype)
    if len(rows):
        padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in shapes]
    dist.all_gather(gathered, padded, group=group)
    return [tensor[:length] for tensor, length in zip(gathered, lengths.tolist(), strict=True)]
