"""Test scores against the swept value, one line per method."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from levelfield.analysis.results import SummaryRow, summarise
from levelfield.analysis.shown_names import MAPS, shown_names
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import PALETTE, new_figure
from levelfield.study.spec import PCA, value_of, without_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A range of more than this factor has a logarithmic axis.
WIDE = 8
SWEPT_EMBEDDING = "separated"


def _draw(results: Results) -> "Figure | None":
    spec = results.study.spec
    sweep = ", ".join(spec.sweep)
    found: dict[str, list[SummaryRow]] = {}
    for row in summarise(results.rows):
        if row.embedding == SWEPT_EMBEDDING:
            found.setdefault(row.method, []).append(row)
    shown = shown_names(spec)
    names = {_of_value(spec.baseline_of(method), method, shown): spec.baseline_of(method) for method in spec.methods}
    names |= {shown[method]: method for method in spec.methods}
    rows = [replace(row, method=name) for name, method in names.items() for row in found.get(method, [])]
    return sweep_figure(sweep, rows) if sweep and any(value_of(row.method) for row in rows) else None


def _of_value(baseline: str, method: str, shown: Mapping[str, str]) -> str:
    """The name of a baseline in the figure: with the swept value of its method, where it depends on the value."""
    if value_of(baseline) is None or value_of(method) is None:
        return shown[baseline]
    return f"{MAPS[PCA]}[{value_of(method)}]"


FIGURE = ReportFigure("Sweep", "Test scores against the swept value, a line a method, with 95% intervals", _draw)


def curves(rows: Sequence[SummaryRow], metric: str) -> dict[str, dict[str | None, SummaryRow]]:
    """Scores in one metric by method, then by value; the value is None for a method that is not swept."""
    found: dict[str, dict[str | None, SummaryRow]] = {}
    for row in rows:
        if row.metric == metric:
            found.setdefault(without_value(row.method), {})[value_of(row.method)] = row
    return found


def sweep_figure(key: str, rows: Sequence[SummaryRow]) -> "Figure":
    """One panel per metric; a method that is not swept is a dotted line.

    Args:
        key: The swept setting, a dotted key.
        rows: Test scores of one kind of embedding, in the study's order.
    """
    values = list(dict.fromkeys(value for row in rows if (value := value_of(row.method)) is not None))
    places = _places(values)
    names = list(dict.fromkeys(without_value(row.method) for row in rows))
    looks = {name: (PALETTE[n % len(PALETTE)], "osD^v"[n // len(PALETTE) % 5]) for n, name in enumerate(names)}
    figure = new_figure(3.2 + 0.18 * (len(names) // 4))
    panels = figure.subplots(1, len(SHOWN_METRICS), squeeze=False)[0]
    for axes, (metric, title) in zip(panels, SHOWN_METRICS.items(), strict=True):
        axes.set_title(title, fontweight="bold")
        axes.set_xlabel(key)
        for name, found in curves(rows, metric).items():
            _draw_curve(axes, places, found, *looks[name])
        _name_values(axes, places)
    panels[0].set_ylabel("percent")
    figure.legend(handles=_legend(rows, looks), loc="outside upper center", ncols=4, fontsize=8.5)
    return figure


def _places(values: Sequence[str]) -> dict[str, float]:
    """Place of each value: numbers at their value, others side by side."""
    with suppress(ValueError):
        return {value: float(value) for value in values}
    return {value: float(place) for place, value in enumerate(values)}


def _draw_curve(
    axes: "Axes", places: Mapping[str, float], found: Mapping[str | None, SummaryRow], colour: str, marker: str
) -> None:
    for value, row in found.items():
        if value is None:
            axes.axhline(100 * row.mean, color=colour, linestyle=(0, (1, 2)), linewidth=1.2)
    points = sorted((places[value], row) for value, row in found.items() if value is not None)
    means = [100 * row.mean for _, row in points]
    errors = [100 * (row.ci95 or 0.0) for _, row in points]
    if points:
        axes.errorbar([x for x, _ in points], means, errors, color=colour, marker=marker, markersize=4, linewidth=1.4)


def _name_values(axes: "Axes", places: Mapping[str, float]) -> None:
    numbers = sorted(places.values())
    if list(numbers) != list(range(len(numbers))) and numbers[0] > 0 and numbers[-1] / numbers[0] > WIDE:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(places.values()), list(places), fontsize=8)
    axes.minorticks_off()


def _legend(rows: Sequence[SummaryRow], looks: Mapping[str, tuple[str, str]]) -> list:
    from matplotlib.lines import Line2D

    swept = {without_value(row.method) for row in rows if value_of(row.method) is not None}
    return [
        Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=1.4, label=name)
        if name in swept
        else Line2D([], [], color=colour, linestyle=(0, (1, 2)), linewidth=1.2, label=f"{name} (not swept)")
        for name, (colour, marker) in looks.items()
    ]
