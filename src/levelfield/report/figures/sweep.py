"""Test scores against the swept value, one line per method."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from levelfield.analysis.results import SummaryRow, summarise
from levelfield.analysis.shown_names import MAPS, shown_names
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import PALETTE, new_figure
from levelfield.study.spec import PCA, value_of, without_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A range of more than this factor has a logarithmic axis.
WIDE = 8


def _draw(results: Results) -> "Figure | None":
    spec = results.study.spec
    names = shown_names(spec)
    shown = {}
    for method in spec.methods:
        baseline = spec.baseline_of(method)
        swept = value_of(baseline) is not None and value_of(method) is not None  # it depends on the value
        shown[f"{MAPS[PCA]}[{value_of(method)}]" if swept else names[baseline]] = baseline
    shown |= {names[method]: method for method in spec.methods}
    summary = [row for row in summarise(results.rows) if row.embedding == "separated"]
    rows = [replace(row, method=name) for name, method in shown.items() for row in summary if row.method == method]
    return sweep_figure(", ".join(spec.sweep), rows) if any(value_of(row.method) for row in rows) else None


FIGURE = ReportFigure("Sweep", "Test scores against the swept value, a line a method, with 95% intervals", _draw)


def sweep_figure(key: str, rows: Sequence[SummaryRow]) -> "Figure":
    """One panel per metric; a method that is not swept is a dotted line.

    Args:
        key: The swept setting, a dotted key.
        rows: Test scores of one kind of embedding, in the study's order.
    """
    values = list(dict.fromkeys(value for row in rows if (value := value_of(row.method)) is not None))
    places = {value: float(place) for place, value in enumerate(values)}
    with suppress(ValueError):  # numbers are at their value, others side by side
        places = {value: float(value) for value in values}
    handles: dict[str, Any] = {}
    names = list(dict.fromkeys(without_value(row.method) for row in rows))
    figure = new_figure(3.2 + 0.18 * (len(names) // 4))
    panels = figure.subplots(1, len(SHOWN_METRICS), squeeze=False)[0]
    for axes, (metric, title) in zip(panels, SHOWN_METRICS.items(), strict=True):
        axes.set_title(title, fontweight="bold")
        axes.set_xlabel(key)
        for number, name in enumerate(names):
            colour, marker = PALETTE[number % len(PALETTE)], "osD^v"[number // len(PALETTE) % 5]
            found = [row for row in rows if (row.metric, without_value(row.method)) == (metric, name)]
            swept = {places[v]: row for row in found if (v := value_of(row.method)) is not None}
            for row in found:
                if value_of(row.method) is None:
                    line = axes.axhline(100 * row.mean, color=colour, linestyle=(0, (1, 2)), linewidth=1.2)
                    handles[f"{name} (not swept)"] = line
            if swept:
                points = [swept[place] for place in sorted(swept)]
                means, errors = [100 * row.mean for row in points], [100 * (row.ci95 or 0.0) for row in points]
                looks = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4}
                handles[name] = axes.errorbar(sorted(swept), means, errors, **looks)
        if min(places.values()) > 0 and max(places.values()) / min(places.values()) > WIDE:
            axes.set_xscale("log", base=2)
        axes.set_xticks(list(places.values()), list(places), fontsize=8)
        axes.minorticks_off()
    panels[0].set_ylabel("percent")
    figure.legend([*handles.values()], [*handles], loc="outside upper center", ncols=4, fontsize=8.5)
    return figure
