"""Scores with their intervals: a row a method, every run a faint dot."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow, run_scores, summarise
from levelfield.metrics.table import SHOWN_METRICS
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, INK, VERMILION, new_figure, rows_of_methods
from levelfield.study.spec import BASELINE, ONE_PCA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour and shape, so that the two are told apart in grey too; a little above and below the row's middle.
LOOKS = {"separated": (BLUE, "o", -0.13), "concatenated": (VERMILION, "s", 0.13)}
RUNS_ASIDE = 0.14


def _draw(results: Results) -> "Figure | None":
    runs = run_scores(results.rows)
    methods = results.study.spec.rows
    return scores_figure(methods, summarise(results.rows), runs) if runs else None


FIGURE = ReportFigure(
    "Scores on unseen classes", "Test scores of every method with 95% intervals; every run is a faint dot", _draw
)


def scores_figure(
    methods: Sequence[str], summary: Sequence[SummaryRow], runs: dict[tuple[str, str, str], list[float]]
) -> "Figure":
    """Test scores: a panel a metric, separated and concatenated embeddings one above the other.

    Args:
        methods: Rows, in order; the baseline among them is drawn through all rows as a dotted line, its concatenated
            embedding by one PCA where there is one (both have their mark).
        runs: Score of each run by (method, embedding, metric), fractions.
    """
    by_one_pca = any(row.method == ONE_PCA for row in summary)
    dotted = {(BASELINE, "separated"), (ONE_PCA if by_one_pca else BASELINE, "concatenated")}
    figure = new_figure(1.1 + 0.4 * len(methods))
    panels = figure.subplots(1, len(SHOWN_METRICS), sharey=True)
    for axes, (metric, title) in zip(panels, SHOWN_METRICS.items(), strict=True):
        rows_of_methods(axes, methods)
        axes.set_title(title, fontweight="bold")
        axes.set_xlabel("percent")
        for row in summary:
            place = BASELINE if row.method == ONE_PCA else row.method
            if row.metric == metric and place in methods:
                _draw_row(axes, methods.index(place), row, runs[row.method, row.embedding, metric], dotted)
    figure.legend(handles=_legend(), loc="outside upper center", ncols=4, fontsize=8.5, handletextpad=0.3)
    return figure


def _draw_row(axes: "Axes", place: int, row: SummaryRow, runs: Sequence[float], dotted: set[tuple[str, str]]) -> None:
    colour, marker, shift = LOOKS[row.embedding]
    y, mean = place + shift, 100 * row.mean
    if (row.method, row.embedding) in dotted:
        axes.axvline(mean, color=colour, linestyle=(0, (1, 2)), linewidth=1, zorder=1)
    if row.method not in (BASELINE, ONE_PCA):
        # Beside the interval, away from the other embedding's: on it they would be hidden.
        beside = [y + RUNS_ASIDE * (1 if shift > 0 else -1)] * len(runs)
        axes.plot([100 * run for run in runs], beside, "o", color=colour, alpha=0.35, markersize=3.5, mew=0)
    if row.ci95 is not None:
        axes.plot([mean - 100 * row.ci95, mean + 100 * row.ci95], [y, y], color=colour, linewidth=1.6)
    axes.plot([mean], [y], marker, color=colour, markersize=5.5, markeredgecolor="white", markeredgewidth=0.6)


def _legend() -> list:
    from matplotlib.lines import Line2D

    looks = [
        Line2D([], [], color=LOOKS[name][0], marker=LOOKS[name][1], markersize=5.5, linewidth=1.6, label=name)
        for name in EMBEDDING_KINDS
    ]
    run = Line2D([], [], color=INK, marker="o", alpha=0.35, markersize=3.5, linewidth=0, mew=0, label="one run")
    dotted = Line2D([], [], color=INK, linestyle=(0, (1, 2)), linewidth=1, label="without training")
    return [*looks, run, dotted]
