"""Further scores of a data set on request: hierarchy, open set, reranking."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from levelfield.data.datasets.base import MetricDataset
from levelfield.errors import UserError
from levelfield.metrics import hierarchical_precision_at_r, verification_metrics
from levelfield.metrics.reranking import KReciprocal, parse_reranking
from levelfield.metrics.table import SHOWN_METRICS, title_of
from levelfield.use.scores import Score, class_interval, scores_of

# The threshold in words, by distance.
THRESHOLDS = {
    "cosine": "cosine at least {:.4f}",
    "euclidean": "distance at most {:.4f}",
    "hamming": "at most {:d} different bits",
    "poincare": "distance at most {:.4f}",
}


class Row(NamedTuple):
    """A measure: its title, its score or None, and a note."""

    title: str
    score: Score | None
    note: str = ""


class Section(NamedTuple):
    """Measures that belong together."""

    title: str
    rows: tuple[Row, ...]

    def lines(self) -> list[str]:
        """Lines for a terminal, in percent."""
        width = max(len(row.title) for row in self.rows)
        return [self.title, *(f"  {row.title:<{width}}  {_percent(row)}".rstrip() for row in self.rows)]

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {"title": row.title, "note": row.note, **({} if row.score is None else row.score._asdict())}
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows}


@dataclass(frozen=True)
class Further:
    """The requested scores.

    Attributes:
        hierarchy: precision by coarse classes.
        open_set: AUROC, EER and TAR at FAR.
        rerank: reranking settings, each with its own scores.
    """

    hierarchy: bool = False
    open_set: bool = False
    rerank: tuple[KReciprocal, ...] = ()

    def check(self, distance: str, dataset: MetricDataset | None = None) -> None:
        """Check that a checkpoint with this distance, and a data set, can give the scores.

        Raises:
            UserError: reranking without cosine, or a data set without coarse classes.
        """
        if self.hierarchy and dataset is not None and dataset.read_index().coarse_names is None:
            raise UserError(f"--hierarchy: {dataset.name} has no coarse classes; leave the option out")
        if self.rerank and distance != "cosine":
            raise UserError(f"--rerank needs the distance cosine, but the checkpoint has {distance}; leave it out")

    def sections(
        self,
        embeddings: Float[Tensor, "samples dim"],
        labels: Int[Tensor, " samples"],
        is_query: Bool[Tensor, " samples"] | None,
        distance: str,
        coarse: Int[np.ndarray, " samples"] | None = None,
    ) -> list[Section]:
        """Compute the scores of a set of embeddings.

        Args:
            is_query: which samples are queries; None makes each sample a query among all others.
            distance: the checkpoint's distance.
            coarse: the coarse class of each sample, if there are any.
        """
        sets: Sequence[Tensor] = (embeddings, labels)
        if is_query is not None:
            sets = (embeddings[is_query], labels[is_query], embeddings[~is_query], labels[~is_query])
        found = []
        if self.hierarchy:
            assert coarse is not None
            found.append(_hierarchy(embeddings, labels, torch.from_numpy(coarse), is_query, distance))
        if self.open_set:
            found.append(_open_set(sets, distance))
        ways = [_reranked(way, embeddings, labels, is_query) for way in self.rerank]
        return [*found, *ways]


def _hierarchy(embeddings: Tensor, labels: Tensor, coarse: Tensor, is_query: Tensor | None, distance: str) -> Section:
    asked = torch.ones_like(labels, dtype=torch.bool) if is_query is None else is_query
    sets = (embeddings, labels, coarse)
    given = [each[asked] for each in sets] + ([] if is_query is None else [each[~asked] for each in sets])
    found_Q = hierarchical_precision_at_r(*given, distance=distance)
    scored_Q = ~found_Q.isnan()
    score = Score(float(found_Q[scored_Q].mean()), class_interval(found_Q[scored_Q], labels[asked][scored_Q]))
    title = f"Hierarchy: {len(labels.unique()):,} classes in {len(coarse.unique()):,} groups"
    return Section(title, (Row(title_of("hierarchical_precision"), score),))


def _open_set(sets: Sequence[Tensor], distance: str) -> Section:
    found = verification_metrics(*sets, distance=distance)
    rows = []
    for metric, value in found.scores.items():
        known = metric in found.thresholds
        note = THRESHOLDS[distance].format(found.thresholds[metric]) if known else ""
        rows.append(Row(title_of(metric), Score(value, None), note))
    rows += [Row(title_of(metric), None, f"not given: {why}") for metric, why in found.not_given.items()]
    return Section(f"Open set: {found.num_same:,} pairs of one class, {found.num_other:,} of two", tuple(rows))


def _reranked(way: KReciprocal, embeddings: Tensor, labels: Tensor, is_query: Tensor | None) -> Section:
    scores, _ = scores_of(embeddings, labels, is_query, metrics=tuple(SHOWN_METRICS), rerank=way)
    rows = tuple(Row(title_of(metric), score) for metric, score in scores.items())
    return Section(f"Ranked again by {way}", rows)


def rerankings(texts: Sequence[str]) -> tuple[KReciprocal, ...]:
    """Reranking settings from texts in the form of `--rerank`.

    Raises:
        UserError: unknown method or setting.
    """
    try:
        return tuple(parse_reranking(text) for text in texts)
    except ValueError as error:
        raise UserError(f"--rerank: {error}") from None


def _percent(row: Row) -> str:
    if row.score is None:
        return row.note
    interval = "" if row.score.ci95 is None else f" ± {100 * row.score.ci95:.1f}"
    return f"{100 * row.score.value:5.1f}{interval}  {row.note}"
