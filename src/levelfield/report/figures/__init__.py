"""The figures of a report, one file each: the page finds them by looking in this folder."""

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
    """What a figure draws from.

    Args:
        changed: Files that a result no longer stands for, with what became of them.
    """

    study: "StudyFolder"
    rows: "Sequence[ResultRow]"
    changed: Mapping[Path, str]


@dataclass(frozen=True)
class ReportFigure:
    """What a file of this folder declares as `FIGURE`.

    Args:
        section: The heading that it stands under; one that the page has not gets a section of its own.
        alt: What it shows, for those who cannot see it.
        draw: Gives the figure, or None where the study has nothing to draw in it.
        note: What stands below it: how it is read.
    """

    section: str
    alt: str
    draw: "Callable[[Results], Figure | None]"
    note: str = ""


def report_figures() -> dict[str, ReportFigure]:
    """The figures by the names of their files, in order."""
    modules = {module.name: import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)}
    return {name: module.FIGURE for name, module in sorted(modules.items()) if hasattr(module, "FIGURE")}
