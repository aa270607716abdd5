"""Retrieval scores of single queries from the places of the items that share the query's label.

Shapes: Q queries, K neighbours, P places (the most items that share a query's label).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

ALL_METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall", "map", "mrr")


@dataclass(frozen=True)
class Wanted:
    """The scores that were asked for.

    Attributes:
        names: keys of the result, in order.
        cuts: k of each `recall_at_<k>` and n of each `map_at_<n>`.
    """

    names: tuple[str, ...]
    cuts: dict[str, int]

    @classmethod
    def parse(cls, metrics: Iterable[str] | None, recall_at: Sequence[int]) -> "Wanted":
        """Expand `recall` to one key for each k of `recall_at`; None asks for all metrics.

        Raises:
            ValueError: an unknown name, or a k below 1.
        """
        if isinstance(metrics, str):
            raise ValueError(f"metrics={metrics!r} is one string; pass a tuple of names, for example ({metrics!r},)")
        names: dict[str, None] = {}
        cuts: dict[str, int] = {}
        for metric in ALL_METRICS if metrics is None else metrics:
            expanded = [f"recall_at_{k}" for k in recall_at] if metric == "recall" else [metric]
            for name in expanded:
                cut = re.fullmatch(r"(?:recall|map)_at_(-?\d+)", name)
                if cut is not None:
                    cuts[name] = int(cut.group(1))
                    if cuts[name] < 1:
                        raise ValueError(f"{name!r}: the number of neighbours must be at least 1")
                elif name not in ALL_METRICS:
                    known = ", ".join((*ALL_METRICS, "recall_at_<k>", "map_at_<n>"))
                    raise ValueError(f"no such metric {name!r}; known are {known}")
                names[name] = None
        if not names:
            raise ValueError("metrics is empty; name at least one, or pass None for all")
        return cls(tuple(names), cuts)

    @property
    def needs_full_ranking(self) -> bool:
        """Whether places are needed however far down they are."""
        return "map" in self.names or "mrr" in self.names

    def num_neighbors(self, max_relevant: int) -> int:
        """Length of the ranking that the other scores need, where a query has at most `max_relevant` matches."""
        depth = max([1, *self.cuts.values()])
        return max(depth, max_relevant) if {"map_at_r", "r_precision"} & set(self.names) else depth


def scores_from_places(
    places_QP: Int64[Tensor, "queries places"],
    found_QP: Bool[Tensor, "queries places"],
    num_relevant_Q: Int64[Tensor, " queries"],
    wanted: Wanted,
) -> dict[str, Float64[Tensor, " queries"]]:
    """Score each query from the ascending places (1 = nearest) of the items that share its label.

    With m(i) the place of the i-th such item and R their number:
    MAP@R = 1/R sum over m(i) <= R of i/m(i); R-precision = |{i: m(i) <= R}|/R; recall@k = [m(1) <= k];
    MAP = 1/R sum of i/m(i); MAP@n = 1/min(R, n) sum over m(i) <= n of i/m(i); MRR = 1/m(1).

    Args:
        places_QP: ascending places; entries that are not `found_QP` are ignored.
        found_QP: which places hold a value. An item beyond the ranking's end is not found.
        num_relevant_Q: R, at least 1.
        wanted: which scores.

    Source: Musgrave et al., A Metric Learning Reality Check, ECCV 2020, section 3.2, equations 3 and 4.
    """
    places_QP = places_QP.clamp(min=1).double()
    num_relevant_Q = num_relevant_Q.double()
    order_P = torch.arange(1, places_QP.shape[1] + 1, device=places_QP.device, dtype=torch.float64)
    precision_QP = torch.where(found_QP, order_P / places_QP, 0.0)
    within_r_QP = found_QP & (places_QP <= num_relevant_Q[:, None])
    first_Q = torch.where(found_QP[:, 0], places_QP[:, 0], torch.inf)

    scores: dict[str, Tensor] = {}
    for name in wanted.names:
        if name == "map_at_r":
            scores[name] = (precision_QP * within_r_QP).sum(1) / num_relevant_Q
        elif name == "r_precision":
            scores[name] = within_r_QP.sum(1) / num_relevant_Q
        elif name == "precision_at_1":
            scores[name] = (first_Q <= 1).double()
        elif name == "map":
            scores[name] = precision_QP.sum(1) / num_relevant_Q
        elif name == "mrr":
            scores[name] = 1 / first_Q
        elif name.startswith("recall_at_"):
            scores[name] = (first_Q <= wanted.cuts[name]).double()
        else:
            cut = wanted.cuts[name]
            scores[name] = (precision_QP * (places_QP <= cut)).sum(1) / num_relevant_Q.clamp(max=cut)
    return scores
