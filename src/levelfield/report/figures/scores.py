"""Test MAP@R of all rows with 95% intervals; every run is a faint dot."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from levelfield.analysis.conclusion import mean_scores
from levelfield.analysis.results import SummaryRow, run_scores
from levelfield.metrics.table import SELECTED_BY, title_of
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, FAINT, INK, new_figure, rows_of_methods
from levelfield.report.table import rows_in_order
from levelfield.study.spec import is_baseline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 4.6  # inches: next to the table on a screen, above it on a phone


def _draw(results: Results) -> "Figure | None":
    rows, scores = rows_in_order(results.rows, results.study.spec), mean_scores(results.rows)
    runs = run_scores(results.rows)
    of_row = {row: runs[row, "separated", SELECTED_BY] for row in scores}
    return scores_figure(rows, scores, of_row) if scores else None


FIGURE = ReportFigure(
    "Scores", "MAP@R of every row on unseen classes with 95% intervals; every run is a faint dot", _draw
)


def scores_figure(
    rows: Sequence[str], scores: Mapping[str, SummaryRow], runs: Mapping[str, Sequence[float]]
) -> "Figure":
    """One line per row of the table; a dotted line marks the first untrained row.

    Args:
        rows: In order, the first on top.
        scores: Mean and interval of a row, fractions.
        runs: The scores of its runs, fractions.
    """
    figure = new_figure(0.9 + 0.24 * len(rows), WIDTH)
    axes = figure.subplots()
    rows_of_methods(axes, rows)
    axes.set_xlabel(f"{title_of(SELECTED_BY)}, percent")
    if rows[0] in scores and is_baseline(rows[0]):
        axes.axvline(100 * scores[rows[0]].mean, color=FAINT, linestyle=(0, (1, 2)), linewidth=1.2)
    for y, row in enumerate(rows):
        if row not in scores:
            continue
        mean, ci95 = 100 * scores[row].mean, 100 * (scores[row].ci95 or 0.0)
        colour, points = INK if is_baseline(row) else BLUE, [100 * run for run in runs[row]]
        if len(points) > 1:  # below the interval, which would hide them
            axes.plot(points, [y + 0.25] * len(points), "o", color=colour, alpha=0.35, markersize=3, mew=0)
        axes.plot([mean - ci95, mean + ci95], [y, y], color=colour, linewidth=1.6)
        axes.plot([mean], [y], "o", color=colour, markersize=5, markeredgecolor="white", markeredgewidth=0.6)
    figure.legend(handles=_legend(), loc="outside upper center", ncols=3, fontsize=8.5, handletextpad=0.4)
    return figure


def _legend() -> list:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=BLUE, marker="o", markersize=5, linewidth=1.6, label="mean, 95% interval"),
        Line2D([], [], color=BLUE, marker="o", alpha=0.35, markersize=3, linewidth=0, mew=0, label="one run"),
        Line2D([], [], color=FAINT, linestyle=(0, (1, 2)), linewidth=1.2, label="first row"),
    ]
