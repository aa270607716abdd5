"""The figures of the page, one file each; a new file in this folder is a new figure."""

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.analysis.results import ResultRow, collect_rows
from levelfield.core.files import write_atomically
from levelfield.report.figures.style import WITHOUT_DATES, style, to_bytes
from levelfield.study.folder import StudyFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_WIDTH = 6.9  # inches: two columns of a conference page


@dataclass(frozen=True)
class Results:
    """The input of a figure."""

    study: StudyFolder
    rows: Sequence[ResultRow]


@dataclass(frozen=True)
class ReportFigure:
    """What a file of this folder declares as `FIGURE`.

    Args:
        section: Its heading; the page adds a section for a new one.
        alt: What it shows, for readers who cannot see it.
        draw: Returns the figure, or None where the study has nothing to draw; or a figure for each method.
        note: How to read it; printed below.
    """

    section: str
    alt: str
    draw: "Callable[[Results], Figure | dict[str, Figure] | None]"
    note: str = ""


def _drawn(results: Results) -> "Iterator[tuple[str, ReportFigure, Figure]]":
    """Name, declaration and drawing of each figure that has something to draw, in the order of their files."""
    with style():
        for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
            declared: Any = getattr(import_module(f"{__name__}.{name}"), "FIGURE", None)
            found = declared and declared.draw(results)
            if isinstance(found, dict):
                for number, (method, figure) in enumerate(found.items(), 1):
                    yield f"{name}_{number}", replace(declared, alt=f"{method}: {declared.alt}"), figure
            elif found is not None:
                yield name, declared, found


def draw_figures(results: Results) -> dict[str, tuple[ReportFigure, bytes]]:
    """Name to declaration and SVG of each figure that has something to draw."""
    return {name: (declared, to_bytes(figure)) for name, declared, figure in _drawn(results)}


def write_figures(study: StudyFolder, folder: Path) -> list[Path]:
    """Write each figure of the report for a paper, as SVG and PDF, all of one width and font; return the paths.

    The files contain their letters (outlines in SVG, the font in PDF) and no dates. The same study and the same version
    of matplotlib give the same bytes. Figures with nothing to draw are left out.
    """
    written = []
    for name, _, figure in _drawn(Results(study, collect_rows(study))):
        figure.set_figwidth(PAPER_WIDTH)
        for kind in WITHOUT_DATES:
            written.append(folder / f"{name}.{kind}")
            write_atomically(written[-1], to_bytes(figure, kind))
    return written
