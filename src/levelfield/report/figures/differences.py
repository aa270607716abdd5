"""Forest plot of the paired differences of methods, with 95% intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import EMBEDDING_KINDS
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdicts import named, turned
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, FAINT, INK, VERMILION, new_figure, rows_of_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 30
SHOWN, NOT_SHOWN, SEARCHES = "significant", "not significant", "two searches of one method"
LOOKS = {SHOWN: (BLUE, "o", BLUE), NOT_SHOWN: (INK, "o", "white"), SEARCHES: (VERMILION, "D", VERMILION)}


def _draw(results: Results) -> "Figure | None":
    spec, names = results.study.spec, shown_names(results.study.spec)
    methods, halves = list(spec.methods), spec.halves
    found = [c for kind in EMBEDDING_KINDS for c in compare_all(results.rows, methods, embedding=kind, halves=halves)]
    comparisons = [named(c, names) for c in found if c.kind != OVER_BASELINE]
    return differences_figure(comparisons) if comparisons else None


FIGURE = ReportFigure("Comparisons", "Paired differences in MAP@R with 95% intervals", _draw)


def differences_figure(comparisons: Sequence[Comparison]) -> "Figure":
    """One row per pair, with the method that is better by the first embedding first; one panel per embedding.

    Args:
        comparisons: Pairs of methods by one metric. Of more than 30 pairs only those with the best method are drawn.
    """
    embeddings = list(dict.fromkeys(c.embedding for c in comparisons))
    rows = [_better_first(c) for c in comparisons if c.embedding == embeddings[0]]
    if len(rows) > MOST_ROWS:
        pairs = [c for c in rows if c.kind == PAIR]
        best = next(c.method for c in pairs if not any(c.method == other.other for other in pairs))
        rows = [c for c in rows if c.method == best or c.kind == SECOND_SEARCH]
    places = {frozenset((c.method, c.other)): (place, c.method) for place, c in enumerate(rows)}
    figure = new_figure(1.2 + 0.27 * len(rows))
    panels = figure.subplots(1, len(embeddings), sharey=True, squeeze=False)[0]
    for axes, embedding in zip(panels, embeddings, strict=True):
        rows_of_methods(axes, [f"{c.method} over {c.other}" for c in rows])
        axes.axvline(0, color=FAINT, linewidth=1)
        axes.set_title(embedding, fontweight="bold")
        axes.set_xlabel(f"difference in {SHOWN_METRICS[comparisons[0].metric]}, points")
        for c in comparisons:
            place, first = places.get(frozenset((c.method, c.other)), (None, ""))
            if c.embedding == embedding and place is not None:
                _draw_row(axes, place, c if c.method == first else turned(c))
    kinds = {_kind(c) for c in comparisons}
    figure.legend(handles=_legend(kinds), loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def _better_first(c: Comparison) -> Comparison:
    return turned(c) if c.difference < 0 else c


def _kind(comparison: Comparison) -> str:
    return SEARCHES if comparison.kind == SECOND_SEARCH else SHOWN if comparison.shown else NOT_SHOWN


def _draw_row(axes: "Axes", row: int, comparison: Comparison) -> None:
    colour, marker, face = LOOKS[_kind(comparison)]
    if comparison.low is not None and comparison.high is not None:
        axes.plot([100 * comparison.low, 100 * comparison.high], [row, row], color=colour, linewidth=1.6)
    axes.plot([100 * comparison.difference], [row], marker, color=colour, markerfacecolor=face, markersize=5.5)


def _legend(kinds: set[str]) -> list:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=colour, marker=marker, markerfacecolor=face, markersize=5.5, linewidth=1.6, label=kind)
        for kind, (colour, marker, face) in LOOKS.items()
        if kind in kinds
    ]
