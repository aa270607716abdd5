"""The score of every trial against each searched argument."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from levelfield.analysis.shown_names import shown_names
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, FAINT, VERMILION, new_figure, validation_axis
from levelfield.study.search_space import Choice, Range, Space, coordinates
from levelfield.study.suggest import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 4


def _draw(results: Results) -> "Figure | None":
    state, spec, names = results.study.state, results.study.spec, shown_names(results.study.spec)
    searches = {method: (spec.space(method), state.trials(method)) for method in spec.methods if spec.trials(method)}
    searches = {names[row]: each for row, each in searches.items() if any(t.value is not None for t in each[1])}
    chosen = {names[row]: best.number for row in spec.methods if (best := state.chosen(row)) is not None}
    return slices_figure(searches, chosen, spec.selected_by) if searches else None


FIGURE = ReportFigure("Search", "Validation score of every trial against each argument, a panel an argument", _draw)


def short(key: str) -> str:
    """`loss.margin` of `model.loss.init_args.margin`."""
    return key.removeprefix("model.").replace("init_args.", "")


def slices_figure(
    searches: Mapping[str, tuple[Space, Sequence[Trial]]], chosen: Mapping[str, int], score: str = SELECTED_BY
) -> "Figure":
    """One panel per argument of a method; the chosen trial has a ring.

    Args:
        searches: Method to its space and trials.
        chosen: Method to the number of its chosen trial.
        score: The validation score.
    """
    factor, label = validation_axis(score)
    panels = [(method, key) for method, (space, _) in searches.items() for key in space]
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(1.55 * rows + 0.3, 8.4 * max(columns, 2) / COLUMNS)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in grid[len(panels) :]:
        spare.remove()
    for axes, (method, key) in zip(grid, panels, strict=False):
        space, trials = searches[method]
        scored = [t for t in trials if t.value is not None]
        points = [(coordinates(space, t.parameters)[key], factor * (t.value or 0), t.number) for t in scored]
        _draw_slice(axes, space[key], key, points, chosen.get(method))
        axes.set_title(f"{method}\n{short(key)}", fontsize=8)
    figure.supylabel(label, fontsize=9)
    return figure


def _draw_slice(
    axes: "Axes", place: Range | Choice, key: str, scored: Sequence[tuple[float, float, int]], chosen: int | None
) -> None:
    axes.plot([x for x, _, _ in scored], [y for _, y, _ in scored], "o", color=BLUE, alpha=0.45, markersize=3, mew=0)
    for x, y, number in scored:
        if number == chosen:
            axes.plot([x], [y], "o", color=VERMILION, markerfacecolor="none", markersize=7, markeredgewidth=1.6)
    axes.tick_params(labelsize=7)
    if isinstance(place, Choice):
        axes.set_xticks(range(len(place.options)), [str(option.get(key, "")) for option in place.options])
        return
    if place.scale == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
    for bound in (place.low, place.high):
        axes.axvline(bound, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
