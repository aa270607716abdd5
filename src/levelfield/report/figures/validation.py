"""Validation curves: the score after each epoch, one panel per method, one colour per fold."""

from collections import defaultdict
from textwrap import fill
from typing import TYPE_CHECKING

from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verify import validation_scores
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import INK, PALETTE, WIDTH, new_figure, validation_axis
from levelfield.study.jobs import METRICS_FILE, failed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_IN_A_ROW = 4
TITLE = 26  # characters in a line above a panel


def _draw(results: Results) -> "Figure | None":
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    spec, runs = results.study.spec, defaultdict(list)
    for job, result in results.study.state.results.items():
        usable = job.stage == "run" and spec.trains(job.method) and not failed(result) and result["validation"]
        if usable and job.path / METRICS_FILE not in results.changed:
            runs[job.method].append((job, result["best_epoch"]))
    if not runs:
        return None
    factor, label = validation_axis(spec.selected_by)
    columns = min(len(runs), PANELS_IN_A_ROW)
    rows = -(-len(runs) // columns)
    width = WIDTH * max(columns, 2.6) / PANELS_IN_A_ROW  # one or two panels need room for the legend
    figure = new_figure(1.6 * rows + 0.5, width)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for spare in grid[len(runs) :]:
        spare.remove()
    figure.supxlabel("epochs trained", fontsize=9)
    figure.supylabel(label, fontsize=9)
    colours = {fold: PALETTE[fold % len(PALETTE)] for fold in range(spec.folds)}
    for number, (axes, (method, found)) in enumerate(zip(grid, runs.items(), strict=False)):
        axes.tick_params(labelbottom=number >= len(runs) - columns)  # the lowest panel of each column
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        axes.set_title(fill(shown_names(spec)[method], TITLE))
        for job, best in found:
            scores = validation_scores(results.study.folder / job.path / METRICS_FILE, spec.selected_by)
            curve = {epoch + 1: factor * score for epoch, score in scores.items()}
            axes.plot([*curve], [*curve.values()], color=colours[job.fold], linewidth=0.9, alpha=0.7)
            kept = [epoch for epoch in curve if epoch == best + 1]
            axes.plot(kept, [curve[epoch] for epoch in kept], "o", color=colours[job.fold], markersize=3.5, mew=0)
    handles = [Line2D([], [], color=colour, label=f"fold {fold}") for fold, colour in colours.items()]
    handles.append(Line2D([], [], color=INK, marker="o", markersize=3.5, linewidth=0, mew=0, label="kept"))
    figure.legend(handles=handles, loc="outside upper center", ncols=8, fontsize=8.5)
    return figure


FIGURE = ReportFigure(
    "Training",
    "Validation score after each epoch of every run, a panel a method",
    _draw,
    note="A dot is the checkpoint that was kept.",
)
