"""Test MAP@R against the swept value, one line per method."""

from collections.abc import Mapping
from contextlib import suppress

from matplotlib.figure import Figure

from levelfield.analysis.results import SummaryRow, mean_scores
from levelfield.analysis.shown_names import MAPS, shown_names
from levelfield.metrics.definitions import SELECTED_BY, title_of
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import PALETTE, new_figure
from levelfield.study.spec import value_of, without_value
from levelfield.study.untrained import PCA

# A range of more than this factor has a logarithmic axis.
WIDE = 8


def _draw(results: Results) -> Figure | None:
    spec, scores = results.study.spec, mean_scores(results.rows)
    names = shown_names(spec)
    shown = {}
    for method in spec.methods:
        baseline = spec.baseline_of(method)
        swept = value_of(baseline) is not None and value_of(method) is not None  # it depends on the value
        shown[f"{MAPS[PCA]}[{value_of(method)}]" if swept else names[baseline]] = baseline
    shown |= {names[method]: method for method in spec.methods}
    rows = {name: scores[row] for name, row in shown.items() if row in scores}
    return sweep_figure(", ".join(spec.sweep), rows) if any(map(value_of, rows)) else None


FIGURE = ReportFigure("Sweep", "Test MAP@R against the swept value, a line a method, with 95% intervals", _draw)


def sweep_figure(key: str, rows: Mapping[str, SummaryRow]) -> Figure:
    """A line for each method; a method that is not swept is a dotted line.

    Args:
        key: The swept setting, a dotted key.
        rows: Name with the value in brackets to its test score, in the study's order.
    """
    values = list(dict.fromkeys(value for row in rows if (value := value_of(row)) is not None))
    places = {value: float(place) for place, value in enumerate(values)}
    with suppress(ValueError):  # numbers are at their value, others side by side
        places = {value: float(value) for value in values}
    names = list(dict.fromkeys(map(without_value, rows)))
    figure = new_figure(3.2 + 0.18 * (len(names) // 4))
    axes = figure.subplots()
    axes.set_xlabel(key)
    axes.set_ylabel(f"{title_of(SELECTED_BY)}, percent")
    for number, name in enumerate(names):
        colour, marker = PALETTE[number % len(PALETTE)], "osD^v"[number // len(PALETTE) % 5]
        own = {value_of(row): score for row, score in rows.items() if without_value(row) == name}
        found = {places[value]: score for value, score in own.items() if value is not None}
        if name in rows:
            label = f"{name} (not swept)"
            axes.axhline(100 * rows[name].mean, color=colour, linestyle=(0, (1, 2)), linewidth=1.2, label=label)
        if found:
            points = [found[place] for place in sorted(found)]
            means, errors = [100 * row.mean for row in points], [100 * (row.ci95 or 0.0) for row in points]
            axes.errorbar(sorted(found), means, errors, color=colour, marker=marker, ms=4, lw=1.4, label=name)
    if min(places.values()) > 0 and max(places.values()) / min(places.values()) > WIDE:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(places.values()), list(places), fontsize=8)
    axes.minorticks_off()
    figure.legend(loc="outside upper center", ncols=4, fontsize=8.5)
    return figure
