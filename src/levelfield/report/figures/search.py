"""Search curves: the best validation score after each trial, one panel per method."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from levelfield.analysis.shown_names import shown_names
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, FAINT, TITLE, VERMILION, small_panels, validation_axis, whole_numbers
from levelfield.study.suggest import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _draw(results: Results) -> "Figure | None":
    state, names = results.study.state, shown_names(results.study.spec)
    searches = {names[row]: trials for row in state.spec.methods if (trials := state.trials(row))}
    chosen = {names[row]: trial.number for row in state.spec.methods if (trial := state.chosen(row)) is not None}
    return search_figure(searches, chosen, state.spec.selected_by) if searches else None


FIGURE = ReportFigure("Search", "Best validation score after each trial, a panel a method", _draw)


def best_so_far(trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """(trial, best value so far), from the first trial with a value."""
    curve: list[tuple[int, float]] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        best = max([value for _, value in curve[-1:]] + ([] if trial.value is None else [trial.value]), default=None)
        if best is not None:
            curve.append((trial.number, best))
    return curve


def search_figure(
    searches: Mapping[str, Sequence[Trial]], chosen: Mapping[str, int], score: str = SELECTED_BY
) -> "Figure":
    """One panel per method: dots are trials, the line is the best so far, the chosen trial has a ring.

    Args:
        chosen: Method to the number of its chosen trial.
        score: The validation score.
    """
    factor, label = validation_axis(score)
    figure, panels = small_panels(len(searches), 1.6, "trial", label)
    for axes, (method, trials) in zip(panels, searches.items(), strict=True):
        axes.set_title(fill(method, TITLE))
        curve = best_so_far(trials)
        scored = [(trial.number, trial.value) for trial in trials if trial.value is not None]
        axes.plot([n for n, _ in scored], [factor * v for _, v in scored], "o", color=FAINT, markersize=4, mew=0)
        axes.step([n for n, _ in curve], [factor * v for _, v in curve], where="post", color=BLUE, linewidth=1.5)
        for number, value in scored:
            if number == chosen.get(method):
                axes.plot([number], [factor * value], "o", color=BLUE, markerfacecolor="none", markersize=7)
        _without_value(axes, [t.number for t in trials if t.failure is not None], "x", VERMILION)
        whole_numbers(axes)
    figure.legend(handles=_legend(searches), loc="outside upper center", ncols=5, fontsize=8.5, handletextpad=0.3)
    return figure


def _without_value(axes: "Axes", numbers: Sequence[int], marker: str, colour: str) -> None:
    """Mark trials on the lower edge of the panel."""
    edge = axes.get_xaxis_transform()
    (marks,) = axes.plot(numbers, [0.03] * len(numbers), marker, color=colour, markersize=4, transform=edge)
    marks.set_in_layout(False)


def _legend(searches: Mapping[str, Sequence[Trial]]) -> list:
    from matplotlib.lines import Line2D

    trials = [trial for found in searches.values() for trial in found]
    handles = [
        Line2D([], [], color=FAINT, marker="o", markersize=4, linewidth=0, mew=0, label="a trial"),
        Line2D([], [], color=BLUE, linewidth=1.5, label="best so far"),
        Line2D([], [], color=BLUE, marker="o", markerfacecolor="none", markersize=7, linewidth=0, label="chosen"),
    ]
    if any(trial.failure is not None for trial in trials):
        handles.append(Line2D([], [], color=VERMILION, marker="x", markersize=4, linewidth=0, label="failed"))
    return handles
