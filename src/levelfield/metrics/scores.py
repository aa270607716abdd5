"""Retrieval scores of single queries from the places of the items that share the query's label.

Shapes: Q queries, K neighbours, P places (the most items that share a query's label).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from levelfield.metrics.table import METRICS, Metric, named

OF_QUERIES = [metric for metric in METRICS if metric.kind == "queries"]
# The metrics for None; `recall` stands for each k of `recall_at`.
USUAL = tuple(metric.key.removesuffix("_at_<k>") for metric in OF_QUERIES if metric.usual)


@dataclass(frozen=True)
class Wanted:
    """The requested scores: row and number by key of the result, in order."""

    rows: dict[str, tuple[Metric, tuple[int, ...]]]

    @classmethod
    def parse(cls, metrics: Iterable[str] | None, recall_at: Sequence[int] = (1, 2, 4, 8)) -> "Wanted":
        """Expand `recall` to one key for each k of `recall_at`; None means the usual metrics.

        Raises:
            ValueError: an unknown name, or a k below 1.
        """
        if isinstance(metrics, str):
            raise ValueError(f"metrics={metrics!r} is one string; pass a tuple of names, for example ({metrics!r},)")
        rows: dict[str, tuple[Metric, tuple[int, ...]]] = {}
        for asked in USUAL if metrics is None else metrics:
            for name in [f"recall_at_{k}" for k in recall_at] if asked == "recall" else [asked]:
                row = named(name)
                if row is None or row[0] not in OF_QUERIES:
                    known = ", ".join(dict.fromkeys((*USUAL, *(metric.key for metric in OF_QUERIES))))
                    raise ValueError(f"no such metric {name!r}; known are {known}")
                if min(row[1], default=1) < 1:
                    raise ValueError(f"{name!r}: the number of neighbours must be at least 1")
                rows[name] = row
        if not rows:
            raise ValueError("metrics is empty; name at least one, or pass None for all")
        return cls(rows)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rows)

    @property
    def depths(self) -> set[str]:
        return {metric.depth for metric, _ in self.rows.values()}

    @property
    def needs_full_ranking(self) -> bool:
        """Whether a score needs all places, however far down."""
        return "all" in self.depths

    def num_neighbors(self, max_relevant: int) -> int:
        """Length of the ranking that the other scores need, where a query has at most `max_relevant` matches."""
        depth = max([1, *(number for _, numbers in self.rows.values() for number in numbers)])
        return max(depth, max_relevant) if "R" in self.depths else depth


@dataclass(frozen=True)
class Places:
    """Places of the items with a query's label in its ranking; m(i) is the place of the i-th, R their number.

    Attributes:
        places_QP: ascending places (1 = nearest); entries that are not `found_QP` are ignored.
        found_QP: which places hold a value. An item beyond the ranking's end is not found.
        num_relevant_Q: R, at least 1.
    """

    places_QP: Float64[Tensor, "queries places"]
    found_QP: Bool[Tensor, "queries places"]
    num_relevant_Q: Float64[Tensor, " queries"]

    @cached_property
    def precision_QP(self) -> Float64[Tensor, "queries places"]:
        """i/m(i), 0 where nothing was found."""
        order_P = torch.arange(1, self.places_QP.shape[1] + 1, device=self.places_QP.device, dtype=torch.float64)
        return torch.where(self.found_QP, order_P / self.places_QP, 0.0)

    @cached_property
    def within_r_QP(self) -> Bool[Tensor, "queries places"]:
        """m(i) <= R."""
        return self.found_QP & (self.places_QP <= self.num_relevant_Q[:, None])

    @cached_property
    def first_Q(self) -> Float64[Tensor, " queries"]:
        """m(1), infinite where nothing was found."""
        return torch.where(self.found_QP[:, 0], self.places_QP[:, 0], torch.inf)


def scores_from_places(
    places_QP: Int64[Tensor, "queries places"],
    found_QP: Bool[Tensor, "queries places"],
    num_relevant_Q: Int64[Tensor, " queries"],
    wanted: Wanted,
) -> dict[str, Float64[Tensor, " queries"]]:
    """Score each query; `Places` explains the arguments."""
    places = Places(places_QP.clamp(min=1).double(), found_QP, num_relevant_Q.double())
    return {name: metric.score(places, *number) for name, (metric, number) in wanted.rows.items()}
