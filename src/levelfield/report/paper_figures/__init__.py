"""Figures and tables of the papers that need no training, one file each: drawn, and in numbers beside the published."""

import io
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.report.figures.style import style
from levelfield.storage.atomic import write_atomically
from levelfield.study.record import StudyRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Studies whose test scores are added to the published ones.
Records = Sequence[StudyRecord]


@dataclass(frozen=True)
class PaperFigure:
    """What a file of this folder declares as `PAPER_FIGURE`.

    Args:
        name: The paper and the figure, e.g. `reality_check/figure3`.
        title: What it shows.
        lines: Our numbers beside the published ones in Markdown, given the studies that are to be added to them.
        draw: Gives the figure for the same studies; None where there is nothing to draw.
    """

    name: str
    title: str
    lines: Callable[[Records], list[str]]
    draw: "Callable[[Records], Figure] | None" = None


def paper_figures() -> dict[str, PaperFigure]:
    """All of them by name, in order."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [module.PAPER_FIGURE for module in modules]
    return {figure.name: figure for figure in sorted(found, key=lambda figure: figure.name)}


def write_paper_figure(figure: PaperFigure, folder: Path, records: Records = ()) -> list[Path]:
    """Write the numbers as `<name>.md` and the drawing, if there is one, as `<name>.png`, and return their paths.

    Args:
        figure: One of `paper_figures()`.
        folder: Where to; `<name>` has the paper's folder in it.
        records: Studies whose test scores are added to the published ones.
    """
    page = folder / f"{figure.name}.md"
    write_atomically(page, "\n".join([f"# {figure.title}", "", *figure.lines(records), ""]).encode())
    if figure.draw is None:
        return [page]
    picture = folder / f"{figure.name}.png"
    with style():
        write_atomically(picture, to_png(figure.draw(records)))
    return [page, picture]


def to_png(figure: "Figure") -> bytes:
    """The figure as PNG: the same bytes for the same content (no version, no date)."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; all columns but the first stand to the right."""
    headings = list(headings)
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows)]
