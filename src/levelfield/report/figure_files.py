"""A study's figures for a paper: SVG and PDF, all of one width and font."""

from pathlib import Path

from levelfield.analysis.integrity import changed_files
from levelfield.analysis.results import collect_rows
from levelfield.core.files import write_atomically
from levelfield.report.figures import Results, report_figures
from levelfield.report.figures.style import style, to_pdf, to_svg
from levelfield.study.folder import StudyFolder

PAPER_WIDTH = 6.9  # inches: two columns of a conference page


def write_figures(study: StudyFolder, folder: Path) -> list[Path]:
    """Write each figure of the report and return the paths.

    The files contain their letters (outlines in SVG, the font in PDF) and no dates. The same study and the same version
    of matplotlib give the same bytes. Figures with nothing to draw are left out.
    """
    results = Results(study, collect_rows(study), changed_files(study))
    written = []
    with style():
        for name, declared in report_figures().items():
            figure = declared.draw(results)
            if figure is None:
                continue
            figure.set_figwidth(PAPER_WIDTH)
            for kind, content in (("svg", to_svg(figure)), ("pdf", to_pdf(figure))):
                written.append(folder / f"{name}.{kind}")
                write_atomically(written[-1], content)
    return written
