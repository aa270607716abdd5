"""Figures from published numbers: the interface of each paper's `figures.py`, and functions that they share."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.core.files import write_atomically
from levelfield.report.figures.style import BLUE, INK, VERMILION, style
from levelfield.study.folder import StudyFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Studies whose scores are added to the published ones.
Records = Sequence[StudyFolder]
FAR = 3  # places; a method that moves farther has another colour
DATASETS = {"cub200": "CUB200", "cars196": "Cars196", "sop": "SOP"}


@dataclass(frozen=True)
class Drawing:
    """A value of `FIGURES` in a paper's `figures.py`, whose key is the table's or figure's name.

    Args:
        title: What it shows.
        lines: Returns our numbers next to the published ones, in Markdown, with the scores of the given studies.
        draw: Returns the figure for the same studies; None if there is nothing to draw.
    """

    title: str
    lines: Callable[[Records], list[str]]
    draw: "Callable[[Records], Figure] | None" = None


def write_drawing(drawing: Drawing, path: Path, studies: Records = ()) -> list[Path]:
    """Write the numbers to `path` with the ending `.md` and the figure, if any, with `.png`, and return the paths."""
    page, image = path.with_suffix(".md"), path.with_suffix(".png")
    write_atomically(page, "\n".join([f"# {drawing.title}", "", *drawing.lines(studies), ""]).encode())
    if drawing.draw is None:
        return [page]
    with style():
        write_atomically(image, to_png(drawing.draw(studies)))
    return [page, image]


def to_png(figure: "Figure") -> bytes:
    """The figure as PNG: the same bytes for the same content (no version, no date)."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; all columns except the first are aligned right."""
    headings = list(headings)
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows)]


def draw_two_orders(
    axes: "Axes",
    left: Mapping[str, float],
    right: Mapping[str, float],
    names: tuple[str, str],
    best_is_most: bool = True,
) -> None:
    """Draw a line from each method's place on the left to its place on the right, the best on top.

    Args:
        axes: An empty panel.
        left: The value of each method, printed next to its name.
        right: Values of the same methods.
        names: Titles of the two sides.
        best_is_most: Whether the largest value is the best; otherwise the smallest is.
    """
    both = (left, right)
    orders = [sorted(values, key=values.__getitem__, reverse=best_is_most) for values in both]
    for method in left:
        places = [order.index(method) for order in orders]
        colour = VERMILION if abs(places[0] - places[1]) > FAR else BLUE
        axes.plot([0, 1], places, "o-", color=colour, markersize=3.5, linewidth=1.2, mew=0)
    for side, (order, values) in enumerate(zip(orders, both, strict=True)):
        for place, method in enumerate(order):
            name = f"{method}  {values[method]:.1f}" if side == 0 else f"{values[method]:.1f}  {method}"
            align, x = ("right", -0.04) if side == 0 else ("left", 1.04)
            axes.text(x, place, name, ha=align, va="center", fontsize=7.5, color=INK)
    axes.set(xlim=(-0.75, 1.75), ylim=(len(orders[0]) - 0.5, -0.7))
    axes.set_xticks([0, 1], names)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
