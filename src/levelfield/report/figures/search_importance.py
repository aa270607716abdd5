"""How much of each search's scores its arguments explain, by optuna."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.search_slices import short
from levelfield.report.figures.style import BLUE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _draw(results: Results) -> "Figure | None":
    from levelfield.analysis.importance import importances

    state, spec = results.study.state, results.study.spec
    searches = {method: importances(spec.space(method), state.trials(method)) for method in spec.methods}
    searches = {method: found for method, found in searches.items() if found}
    return importance_figure(searches) if searches else None


FIGURE = ReportFigure(
    "Search",
    "Share of each search's variance that each argument explains",
    _draw,
    note="Importance: the share of the variance of a search's scores that an argument explains by itself (fANOVA, by "
    "optuna, over the trials that were made).",
)


def importance_figure(searches: Mapping[str, Mapping[str, float]]) -> "Figure":
    """A bar an argument, grouped by method.

    Args:
        searches: Method to its arguments' shares, which sum to 1.
    """
    rows = [(method, key, share) for method, found in searches.items() for key, share in found.items()]
    figure = new_figure(0.6 + 0.21 * len(rows))
    axes = figure.subplots()
    axes.barh(range(len(rows)), [100 * share for _, _, share in rows], color=BLUE, height=0.62)
    axes.set_yticks(range(len(rows)), [f"{method}: {short(key)}" for method, key, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    starts = [place for place in range(1, len(rows)) if rows[place][0] != rows[place - 1][0]]
    for place in starts:
        axes.axhline(place - 0.5, color="#DDDDDD", linewidth=0.8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("importance, percent")
    return figure
