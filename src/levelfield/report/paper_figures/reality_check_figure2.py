"""Figure 2 of the Reality Check: P@1 over the years, (a) as papers claim it and (b) as it was measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from levelfield.analysis.paper_figures import DATASETS, Point, claimed_trend, measured_trend
from levelfield.analysis.study_points import study_trend
from levelfield.report.figures.style import BLUE, GREEN, INK, VERMILION, new_figure
from levelfield.report.paper_figures import PaperFigure, Records, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"cub200": "CUB200", "cars196": "Cars196", "sop": "SOP"}


def lines(records: Records) -> list[str]:
    """A row a method of (b), a column a data set; then those of studies."""
    trends = {dataset: {point.method: point for point in measured_trend(dataset)} for dataset in DATASETS}
    found = table(
        ["P@1, concatenated, percent", "year", *TITLES.values()],
        [
            [method, str(point.year), *(f"{100 * trends[dataset][method].precision_at_1:.2f}" for dataset in DATASETS)]
            for method, point in trends[DATASETS[0]].items()
        ],
    )
    for record in records:
        if points := study_trend(record)[1]:
            rows = [[point.method, str(point.year), f"{100 * point.precision_at_1:.2f}"] for point in points]
            found += ["", *table([f"study {record.spec.name}", "year", "P@1"], rows)]
    return found


def draw(records: Records) -> "Figure":
    """Claims above, measurements below, a column a data set; the points of studies below as diamonds.

    A study of another data set has a column of its own, with no claims above.
    """
    trends = [(*study_trend(record), record.spec.name) for record in records]
    others = [(points, name) for where, points, name in trends if where not in DATASETS and points]
    figure = new_figure(5.4)
    rows = figure.subplots(2, len(DATASETS) + len(others), sharex=True, sharey="col", squeeze=False)
    for column, dataset in enumerate(DATASETS):
        _draw_points(rows[0][column], claimed_trend(dataset), VERMILION, "o")
        _draw_points(rows[1][column], measured_trend(dataset), BLUE, "o")
        for where, points, _ in trends:
            if where == dataset and points:
                _draw_points(rows[1][column], points, GREEN, "D")
        rows[0][column].set_title(TITLES[dataset])
    for column, (points, name) in enumerate(others, start=len(DATASETS)):
        rows[0][column].set_axis_off()
        rows[1][column].set_title(name)
        _draw_points(rows[1][column], points, GREEN, "D")
    for axes in rows[1]:
        axes.set_xlabel("year of the paper")
    rows[0][0].set_ylabel("(a) claimed P@1, percent")
    rows[1][0].set_ylabel("(b) measured P@1, percent")
    return figure


def _draw_points(axes: "Axes", points: Sequence[Point], colour: str, marker: str) -> None:
    """Dots with the names of the lowest and the highest, and the mean of each year as a line."""
    axes.plot(
        [p.year for p in points], [100 * p.precision_at_1 for p in points], marker, color=colour, alpha=0.7, mew=0
    )
    years = sorted({p.year for p in points})
    means = [[100 * p.precision_at_1 for p in points if p.year == year] for year in years]
    axes.plot(years, [sum(scores) / len(scores) for scores in means], color=colour, linewidth=1, alpha=0.6)
    for extreme, above in ((min(points, key=_score), False), (max(points, key=_score), True)):
        place = (extreme.year, 100 * extreme.precision_at_1)
        where: Any = {"ha": "center", "va": "bottom" if above else "top", "xytext": (0, 5 if above else -5)}
        axes.annotate(extreme.method, place, textcoords="offset points", fontsize=7.5, color=INK, **where)
    axes.margins(0.15, 0.2)


def _score(point: Point) -> float:
    return point.precision_at_1


PAPER_FIGURE = PaperFigure("reality_check/figure2", "P@1 over the years, claimed and measured", lines, draw)
