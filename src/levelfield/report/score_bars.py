"""Where each score and its interval lie on the scale of its column."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from levelfield.analysis.results import SummaryRow
from levelfield.metrics.table import SELECTED_BY, as_shown
from levelfield.report.table import ScoreLine

Cell = dict[str, Any]
MARGIN = 0.03  # of the scale at either end, so that a mark at it is whole


class Scale(NamedTuple):
    """Lowest and highest end of a column's intervals, fractions or numbers of the user's own metric."""

    low: float
    high: float
    metric: str = SELECTED_BY

    def place(self, value: float) -> float:
        """Where a score lies, in percent of the scale's length."""
        if self.high == self.low:
            return 50.0
        return round(100 * (MARGIN + (1 - 2 * MARGIN) * (value - self.low) / (self.high - self.low)), 2)

    @property
    def ends(self) -> tuple[str, str]:
        return as_shown(self.metric, self.low), as_shown(self.metric, self.high)


def scale_of(rows: Iterable[SummaryRow]) -> Scale | None:
    """The scale of a column; None where no row has a score."""
    found = list(rows)
    ends = [row.mean + sign * (row.ci95 or 0.0) for row in found for sign in (-1, 1)]
    return Scale(min(ends), max(ends), found[0].metric) if found else None


def cells_of(line: ScoreLine, rows: Sequence[SummaryRow | None], scales: Sequence[Scale | None]) -> list[Cell]:
    """What the cells of a line of the table show: the score's text and number, and its bar.

    Args:
        line: The texts of the test scores, then that of the validation.
        rows: The scores in the same order.
        scales: Of each column.
    """
    found = []
    for text, row, scale in zip([*line.scores, line.validation], rows, scales, strict=True):
        cell: Cell = {"text": text, "value": None, "bar": None}
        if row is not None and scale is not None and text:
            half = row.ci95 or 0.0
            low, mean, high = (scale.place(each) for each in (row.mean - half, row.mean, row.mean + half))
            cell |= {"value": row.mean, "bar": {"low": low, "mean": mean, "high": high}}
        found.append(cell)
    return found
