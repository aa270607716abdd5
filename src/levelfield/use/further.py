"""What is measured of a set on request, beside the usual scores and never among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from levelfield.metrics import verification_metrics
from levelfield.metrics.table import title_of
from levelfield.use.scores import Score

# What the least similarity that is accepted is called, by distance.
THRESHOLDS = {
    "cosine": "cosine at least {:.4f}",
    "euclidean": "distance at most {:.4f}",
    "hamming": "at most {:d} different bits",
}


class Row(NamedTuple):
    """A measure: its title, its score, or none, and what is to be said of it."""

    title: str
    score: Score | None
    note: str = ""


class Section(NamedTuple):
    """Measures that belong together."""

    title: str
    rows: tuple[Row, ...]

    def lines(self) -> list[str]:
        """As a terminal shows them, in percent."""
        width = max(len(row.title) for row in self.rows)
        return [self.title, *(f"  {row.title:<{width}}  {_percent(row)}".rstrip() for row in self.rows)]

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        rows = [
            {"title": row.title, "note": row.note, **({} if row.score is None else row.score._asdict())}
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows}


@dataclass(frozen=True)
class Further:
    """What is asked for.

    Attributes:
        open_set: AUROC, EER and TAR at FAR.
    """

    open_set: bool = False

    def sections(
        self,
        embeddings: Float[Tensor, "samples dim"],
        labels: Int[Tensor, " samples"],
        is_query: Bool[Tensor, " samples"] | None,
        distance: str,
    ) -> list[Section]:
        """Measure a set.

        Args:
            is_query: which samples are searched for among the others; None searches for each among all others.
            distance: of the checkpoint.
        """
        sets: Sequence[Tensor] = (embeddings, labels)
        if is_query is not None:
            sets = (embeddings[is_query], labels[is_query], embeddings[~is_query], labels[~is_query])
        return [_open_set(sets, distance)] if self.open_set else []


def _open_set(sets: Sequence[Tensor], distance: str) -> Section:
    found = verification_metrics(*sets, distance=distance)
    rows = []
    for metric, value in found.scores.items():
        known = metric in found.thresholds
        note = THRESHOLDS[distance].format(found.thresholds[metric]) if known else ""
        rows.append(Row(title_of(metric), Score(value, found.ci95[metric]), note))
    rows += [Row(title_of(metric), None, f"not given: {why}") for metric, why in found.not_given.items()]
    return Section(f"Open set: {found.num_same:,} pairs of one class, {found.num_other:,} of two", tuple(rows))


def _percent(row: Row) -> str:
    if row.score is None:
        return row.note
    interval = "" if row.score.ci95 is None else f" ± {100 * row.score.ci95:.1f}"
    return f"{100 * row.score.value:5.1f}{interval}  {row.note}"
