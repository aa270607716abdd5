"""The figures of the page, one file each; a new file in this folder is a new figure."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from levelfield.analysis.results import ResultRow
    from levelfield.study.folder import StudyFolder


@dataclass(frozen=True)
class Results:
    """The input of a figure.

    Args:
        changed: `changed_files` of the study.
    """

    study: "StudyFolder"
    rows: "Sequence[ResultRow]"
    changed: Mapping[Path, str]


@dataclass(frozen=True)
class ReportFigure:
    """What a file of this folder declares as `FIGURE`.

    Args:
        section: Its heading; the page adds a section for a new one.
        alt: What it shows, for readers who cannot see it.
        draw: Returns the figure, or None where the study has nothing to draw.
        note: How to read it; printed below.
    """

    section: str
    alt: str
    draw: "Callable[[Results], Figure | None]"
    note: str = ""


def report_figures() -> dict[str, ReportFigure]:
    """The figures by the names of their files, in order."""
    modules = {module.name: import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)}
    return {name: module.FIGURE for name, module in sorted(modules.items()) if hasattr(module, "FIGURE")}
