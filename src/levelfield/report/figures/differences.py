"""Forest plot of the paired differences of methods, with 95% intervals."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.results import EMBEDDING_KINDS
from levelfield.analysis.shown_names import shown_names
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, FAINT, INK, VERMILION, new_figure, rows_of_methods

MOST_ROWS = 30
SHOWN, NOT_SHOWN, SEARCHES = "significant", "not significant", "two searches of one method"
LOOKS: dict[str, Any] = {
    SHOWN: {"color": BLUE, "marker": "o"},
    NOT_SHOWN: {"color": INK, "marker": "o", "markerfacecolor": "white"},
    SEARCHES: {"color": VERMILION, "marker": "D"},
}


def _draw(results: Results) -> Figure | None:
    spec, names = results.study.spec, shown_names(results.study.spec)
    how: Any = {"halves": spec.halves, "planned": spec.compare}
    of_each = [compare_all(results.rows, list(spec.methods), embedding=kind, **how) for kind in EMBEDDING_KINDS]
    comparisons = [c.named(names) for found in of_each for c in found if c.kind != OVER_BASELINE]
    return differences_figure(comparisons) if comparisons else None


FIGURE = ReportFigure("Comparisons", "Paired differences in MAP@R with 95% intervals", _draw)


def differences_figure(comparisons: Sequence[Comparison]) -> Figure:
    """One row per pair, with the method that is better by the first embedding first; one panel per embedding.

    Args:
        comparisons: Pairs of methods by one metric. Of more than 30 pairs only those with the best method are drawn.
    """
    embeddings = list(dict.fromkeys(c.embedding for c in comparisons))
    rows = [c.turned() if c.difference < 0 else c for c in comparisons if c.embedding == embeddings[0]]
    if len(rows) > MOST_ROWS:
        better = Counter(c.method for c in rows if c.kind == PAIR)  # if runs failed, pairs can form a circle
        best = max(better, key=better.__getitem__, default=None)
        rows = [c for c in rows if best in (c.method, c.other) or c.kind == SECOND_SEARCH]
    places = {frozenset((c.method, c.other)): (place, c.method) for place, c in enumerate(rows)}
    figure = new_figure(1.2 + 0.27 * len(rows))
    marks: dict[str, Any] = {}
    panels = figure.subplots(1, len(embeddings), sharey=True, squeeze=False)[0]
    for axes, embedding in zip(panels, embeddings, strict=True):
        rows_of_methods(axes, [f"{c.method} over {c.other}" for c in rows])
        axes.axvline(0, color=FAINT, linewidth=1)
        axes.set_title(embedding, fontweight="bold")
        axes.set_xlabel(f"difference in {SHOWN_METRICS[comparisons[0].metric]}, points")
        for c in comparisons:
            place, first = places.get(frozenset((c.method, c.other)), (None, ""))
            if c.embedding == embedding and place is not None:
                row = c if c.method == first else c.turned()
                kind = SEARCHES if c.kind == SECOND_SEARCH else SHOWN if c.shown else NOT_SHOWN
                ends = [] if row.low is None or row.high is None else [100 * row.low, 100 * row.high]
                axes.plot(ends, [place] * len(ends), color=LOOKS[kind]["color"], linewidth=1.6)
                (marks[kind],) = axes.plot(100 * row.difference, place, **LOOKS[kind], markersize=5.5, linewidth=1.6)
    kinds = [kind for kind in LOOKS if kind in marks]
    figure.legend([marks[kind] for kind in kinds], kinds, loc="outside upper center", ncols=3, fontsize=8.5)
    return figure
