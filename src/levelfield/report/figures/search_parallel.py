"""Parallel coordinates of each search: a line a trial through its arguments to its score."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.search_slices import short
from levelfield.report.figures.style import BLUE, FAINT, VERMILION, new_figure
from levelfield.study.search_space import Choice, Space
from levelfield.study.suggest import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
BEST = 0.2  # share of the trials that is drawn above the others


def _draw(results: Results) -> "Figure | None":
    state, spec = results.study.state, results.study.spec
    searches = {method: (spec.space(method), state.trials(method)) for method in spec.methods if spec.trials(method)}
    searches = {
        method: (space, trials)
        for method, (space, trials) in searches.items()
        if len(space) > 1 and sum(trial.value is not None for trial in trials) > 1
    }
    chosen = {method: best.number for method in searches if (best := state.chosen(method)) is not None}
    return parallel_figure(searches, chosen) if searches else None


FIGURE = ReportFigure(
    "Search",
    "Every trial as a line through its arguments to its score, a panel a method",
    _draw,
    note="A line is a trial, through its arguments, each from the lower to the upper bound of its space, to its score, "
    "from the lowest to the highest; the best fifth is blue and thick, the chosen trial dashed.",
)


def parallel_figure(searches: Mapping[str, tuple[Space, Sequence[Trial]]], chosen: Mapping[str, int]) -> "Figure":
    """A panel a method of at least two arguments, an axis an argument and one for the score.

    Args:
        searches: Method to its space and trials.
        chosen: Method to the number of the trial whose setting its runs have.
    """
    columns = min(COLUMNS, len(searches))
    rows = -(-len(searches) // columns)
    figure = new_figure(1.75 * rows, 8.4 * max(columns, 1.5) / COLUMNS)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in grid[len(searches) :]:
        spare.remove()
    for axes, (method, (space, trials)) in zip(grid, searches.items(), strict=False):
        axes.set_title(method)
        _draw_lines(axes, space, trials, chosen.get(method))
    return figure


def _draw_lines(axes: "Axes", space: Space, trials: Sequence[Trial], chosen: int | None) -> None:
    from levelfield.analysis.importance import places_of

    values = {trial.number: trial.value for trial in trials if trial.value is not None}
    low, high = min(values.values()), max(values.values())
    ranked = sorted(values, key=lambda number: (-values[number], number))
    best = set(ranked[: max(1, round(BEST * len(ranked)))])
    for trial in sorted(trials, key=lambda trial: (trial.number == chosen, trial.number in best)):
        if trial.value is None:
            continue
        places = places_of(space, trial)
        line = [
            places[k] / max(len(p.options) - 1, 1) if isinstance(p, Choice) else places[k] for k, p in space.items()
        ]
        line.append((trial.value - low) / ((high - low) or 1.0))
        colour, width, alpha = (BLUE, 1.4, 0.8) if trial.number in best else (FAINT, 0.7, 0.5)
        if trial.number == chosen:
            axes.plot(range(len(line)), line, color=VERMILION, linewidth=2, linestyle=(0, (3, 1)))
        else:
            axes.plot(range(len(line)), line, color=colour, linewidth=width, alpha=alpha)
    names = [short(key).rpartition(".")[2] for key in space]
    names = ["\n" * (place % 2) + name for place, name in enumerate(names)]  # neighbours would run into each other
    axes.set_xticks(range(len(space) + 1), [*names, f"MAP@R\n{100 * low:.1f} to {100 * high:.1f}"], fontsize=7)
    axes.set_yticks([])
    axes.set_ylim(-0.03, 1.03)
    axes.grid(axis="x", color="#BBBBBB")
