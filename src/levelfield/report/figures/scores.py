"""Test MAP@R of all rows with 95% intervals; every run is a faint dot, a dotted line the best untrained row."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from levelfield.analysis.results import mean_scores, run_scores
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdict import best_method, best_untrained
from levelfield.metrics.definitions import SELECTED_BY, title_of
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, INK, new_figure, rows_of_methods
from levelfield.report.table import rows_in_order
from levelfield.study.spec import is_baseline

WIDTH = 4.6  # inches: next to the table on a screen, above it on a phone


def _draw(results: Results) -> Figure | None:
    rows, spec, scores = results.rows, results.study.spec, mean_scores(results.rows)
    if all(map(is_baseline, scores)):
        return None
    order, names, runs = rows_in_order(rows, spec), shown_names(spec), run_scores(rows)
    figure = new_figure(1.0 + 0.24 * len(order), WIDTH)
    axes = figure.subplots()
    rows_of_methods(axes, [names[row] for row in order])
    axes.set_xlabel(f"{title_of(SELECTED_BY)}, percent")
    legend = [
        Line2D([], [], color=BLUE, marker="o", markersize=5, linewidth=1.6, label="mean, 95% interval"),
        Line2D([], [], color=BLUE, marker="o", alpha=0.35, markersize=3, linewidth=0, mew=0, label="one run"),
    ]
    if (best := best_untrained(scores, spec, best_method(rows, spec))) is not None:
        label = f"best untrained row: {names[best]}"
        legend.append(axes.axvline(100 * scores[best].mean, color=INK, linestyle=(0, (1, 2)), lw=1.2, label=label))
    for y, row in enumerate(order):
        if row not in scores:
            continue
        mean, ci95 = 100 * scores[row].mean, 100 * (scores[row].ci95 or 0.0)
        colour, points = INK if is_baseline(row) else BLUE, [100 * run for run in runs[row, "separated", SELECTED_BY]]
        if len(points) > 1:  # below the interval, which would hide them
            axes.plot(points, [y + 0.25] * len(points), "o", color=colour, alpha=0.35, markersize=3, mew=0)
        axes.plot([mean - ci95, mean + ci95], [y, y], color=colour, linewidth=1.6)
        axes.plot([mean], [y], "o", color=colour, markersize=5, markeredgecolor="white", markeredgewidth=0.6)
    figure.legend(handles=legend, loc="outside upper left", ncols=1, fontsize=8.5, handletextpad=0.4)
    return figure


FIGURE = ReportFigure(
    "Scores", "MAP@R of every row on unseen classes with 95% intervals; every run is a faint dot", _draw
)
