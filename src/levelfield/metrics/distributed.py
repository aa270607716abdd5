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

from levelfield.metrics.checks import check_shapes
from levelfield.metrics.distances import DISTANCES, at_one_scale, unpack_signs
from levelfield.metrics.own import is_own, own_score
from levelfield.metrics.query_scores import count_relevant, score_queries
from levelfield.metrics.scores import Wanted
from levelfield.metrics.table import SHOWN_METRICS

# Types of the states; a process without data sends the first.
DTYPES = (torch.float32, torch.int64, torch.uint8)


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
        **kwargs: `torchmetrics.Metric`'s own.

    Attributes:
        query_scores: by metric, the scores of the queries with a match that `compute` has averaged; (Q,) float64.
        query_labels: (Q,) their labels.

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
        **kwargs: Any,
    ) -> None:
        # `compute` gathers from the other processes itself, only what it needs.
        super().__init__(**{"dist_sync_fn": gather_rows, "sync_on_compute": False, **kwargs})
        self.own = [] if isinstance(metrics, str) else [name for name in metrics if is_own(name)]
        shipped = [name for name in metrics if name not in self.own] if self.own else metrics
        self.wanted = Wanted.parse(shipped) if shipped or not self.own else Wanted({})
        self.num_samples = num_samples
        if distance not in DISTANCES:
            raise ValueError(f"no such distance {distance!r}; known are {', '.join(DISTANCES)}")
        self.distance = distance
        self.is_query = None if is_query is None else torch.as_tensor(is_query)
        self.query_scores: dict[str, Float64[Tensor, " queries"]] = {}
        self.query_labels: Int64[Tensor, " queries"] = torch.empty(0, dtype=torch.int64)
        for state in ("embeddings", "labels", "index", "finite"):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        index: Integer[Tensor, " batch"],
    ) -> None:
        """Add a batch: (B, D) embeddings of any floating type, (B,) labels, (B,) indices in the data set."""
        check_shapes(embeddings, labels, "embeddings", "labels")
        if index.shape != labels.shape or index.is_floating_point():
            raise ValueError(f"index must hold {len(labels)} integers, not {index.dtype} {tuple(index.shape)}")
        held = DISTANCES[self.distance][0](embeddings)
        # Signs hide what is not finite, and float32 has a smaller range than the embeddings may have.
        finite = torch.isfinite(embeddings).all(dim=1) & torch.isfinite(held).all(dim=1)
        self.finite.append(finite.to(torch.uint8))
        self.embeddings.append(held)
        self.labels.append(labels.detach().long())
        self.index.append(index.detach().long().to(labels.device))

    def compute(self) -> dict[str, float]:
        """Means by metric, and `num_skipped`; the same on every process."""
        held, labels, index, finite = (self._held(name) for name in ("embeddings", "labels", "index", "finite"))
        shared = dist.is_available() and dist.is_initialized()
        rank, num_processes = (
            (dist.get_rank(self.process_group), dist.get_world_size(self.process_group)) if shared else (0, 1)
        )
        if shared and not self._is_synced:
            held, labels, index, finite = (
                torch.cat(gather_rows(rows, self.process_group)) for rows in (held, labels, index, finite)
            )
        if len(index) == 0:
            raise ValueError("RetrievalMetrics.compute before any update")
        if not finite.all():
            bad = index[finite == 0]
            raise ValueError(
                f"{len(bad)} of {len(index)} embeddings have NaN or infinite values in float32, the first is sample "
                f"{int(bad[0])}"
            )
        first = first_of_each(index)
        if self.num_samples is not None and len(first) != self.num_samples:
            raise ValueError(
                f"{len(first)} different samples were scored, {self.num_samples} were expected; "
                "look at the sampler, and at whether `index` is the index in the data set"
            )
        items = torch.arange(len(first), device=first.device)
        if not (len(first) == len(index) and torch.equal(first, items)):  # indexing copies all embeddings
            held, labels, index = held[first], labels[first], index[first]
        asks = None if self.is_query is None else self.is_query.to(index.device)[index]
        queries, gallery = (items, items) if asks is None else (items[asks], items[~asks])
        excludes_self = asks is None
        num_relevant = count_relevant(labels, labels[gallery], excludes_self)
        matched = queries[num_relevant[queries] > 0]
        if len(matched) == 0:
            raise ValueError(f"none of the {len(queries)} samples shares its label with another")
        if bool((labels[gallery] == labels[gallery[0]]).all()):
            raise ValueError(
                f"all {len(gallery)} samples have the label {int(labels[gallery[0]])}; two labels are needed"
            )
        own = self._own_scores(held, labels) if self.own else {}
        num_skipped = len(queries) - len(matched)
        if not self.wanted.rows:
            return {**own, "num_skipped": num_skipped}
        start, end = (len(matched) * r // num_processes for r in (rank, rank + 1))
        asking, asked = (held, held) if excludes_self else (held[queries], held[gallery])
        if self.distance == "euclidean":
            asking, asked = (each.float() for each in at_one_scale(asking, asked))
        scores = score_queries(
            asking,
            labels[queries],
            asked,
            labels[gallery],
            torch.searchsorted(queries, matched[start:end]),
            num_relevant[queries],
            self.wanted,
            similarity=DISTANCES[self.distance][1],
            excludes_self=excludes_self,
        )
        table_QM = torch.stack([scores[name] for name in self.wanted.names], dim=1)
        if shared:  # scores, not sums: the mean equals that of one process to the last bit
            table_QM = torch.cat(gather_rows(table_QM.view(torch.int64), self.process_group)).view(torch.float64)
        self.query_labels = labels[matched]
        self.query_scores = dict(zip(self.wanted.names, table_QM.T.contiguous(), strict=True))
        found = {name: float(values.sum() / len(matched)) for name, values in self.query_scores.items()}
        return {**found, **own, "num_skipped": num_skipped}

    def _own_scores(self, held: Tensor, labels: Int64[Tensor, " items"]) -> dict[str, float]:
        embeddings = held if held.is_floating_point() else unpack_signs(held)
        return {name: own_score(name, embeddings, labels) for name in self.own}

    def _held(self, state: str) -> Tensor:
        rows = getattr(self, state)
        return dim_zero_cat(rows) if len(rows) else torch.empty(0, dtype=torch.float32, device=self.device)


def first_of_each(index_N: Int64[Tensor, " items"]) -> Int64[Tensor, " unique"]:
    """Positions of the first occurrence of each value, ordered by value."""
    sorted_N, order_N = index_N.sort(stable=True)
    is_first_N = torch.ones_like(sorted_N, dtype=torch.bool)
    is_first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    return order_N[is_first_N]


def gather_rows(rows: Tensor, group: Any = None) -> list[Tensor]:
    """The tensors of all processes. Their first dimensions may differ; a process without data gives an empty one."""
    width = rows.shape[1] if rows.ndim == 2 else 0
    mine = torch.tensor([len(rows), width, DTYPES.index(rows.dtype)], device=rows.device)
    shapes = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shapes, mine, group=group)
    lengths, widths, dtypes = (each.tolist() for each in torch.stack(shapes).unbind(1))
    width, dtype = max(widths), DTYPES[max(dtypes)]  # a process without data knows neither
    padded = rows.new_zeros((max(lengths), width) if width else (max(lengths),), dtype=dtype)
    if len(rows):
        padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded, group=group)
    return [tensor[:length] for tensor, length in zip(gathered, lengths, strict=True)]
