"""The search of each method: the best validation score so far, then every trial against each argument."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from levelfield.analysis.selection import short_key
from levelfield.analysis.shown_names import shown_names
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, FAINT, VERMILION, small_panels, validation_axis, whole_numbers
from levelfield.study.search_space import Choice, Space, coordinates
from levelfield.study.suggest import Trial, best_trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _draw(results: Results) -> "Figure | None":
    state, spec, names = results.study.state, results.study.spec, shown_names(results.study.spec)
    searches = {names[row]: (spec.space(row), trials) for row in spec.methods if (trials := state.trials(row))}
    return search_figure(searches, spec.selected_by) if searches else None


FIGURE = ReportFigure(
    "Search",
    "Best validation score after each trial, and the score of every trial against each argument, a panel each",
    _draw,
    note="A dot is a trial, the line the best so far, a cross a failed trial. The ring is the chosen trial.",
)


def best_so_far(trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """(trial, best value so far), from the first trial with a value."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    best = accumulate((-inf if trial.value is None else trial.value for trial in ordered), max)
    return [(trial.number, value) for trial, value in zip(ordered, best, strict=True) if value > -inf]


def search_figure(searches: Mapping[str, tuple[Space, Sequence[Trial]]], score: str = SELECTED_BY) -> "Figure":
    """For each method a panel over the trials, then one for each argument.

    Args:
        searches: Method to its space and trials.
        score: The validation score.
    """
    factor, label = validation_axis(score)
    scored = {
        method: [trial for trial in trials if trial.value is not None] for method, (_, trials) in searches.items()
    }
    panels = [(m, key) for m, (space, _) in searches.items() for key in ("", *(space if scored[m] else ()))]
    figure, grid = small_panels(len(panels), 1.55, "", label, shared=False)
    for axes, (method, key) in zip(grid, panels, strict=True):
        space, trials = searches[method]
        axes.set_title(f"{method}\n{short_key(key) or 'trial'}", fontsize=8)
        axes.tick_params(labelsize=7)
        places = [coordinates(space, trial.parameters)[key] if key else trial.number for trial in scored[method]]
        values = [factor * (trial.value or 0.0) for trial in scored[method]]
        axes.plot(places, values, "o", color=BLUE, alpha=0.45, markersize=3, mew=0)
        if key:
            _name_argument(axes, space, key)
        else:
            curve = best_so_far(trials)
            axes.step([n for n, _ in curve], [factor * v for _, v in curve], where="post", color=BLUE, linewidth=1.5)
            failed = [trial.number for trial in trials if trial.failure is not None]
            edge = axes.get_xaxis_transform()
            axes.plot(failed, [0.03] * len(failed), "x", color=VERMILION, markersize=4, transform=edge, in_layout=False)
            whole_numbers(axes)
        if (chosen := best_trial(trials)) is not None:
            at = scored[method].index(chosen)
            axes.plot(places[at], values[at], "o", color=VERMILION, mfc="none", markersize=7, mew=1.6)
    return figure


def _name_argument(axes: "Axes", space: Space, key: str) -> None:
    place = space[key]
    if isinstance(place, Choice):
        axes.set_xticks(range(len(place.options)), [str(option.get(key, "")) for option in place.options])
        return
    if place.scale == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
    for bound in (place.low, place.high):
        axes.axvline(bound, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
