"""A study's figures as files for a paper: SVG and PDF, all of one width and one font."""

from pathlib import Path

from levelfield.analysis.integrity import changed_files
from levelfield.analysis.results import collect_rows
from levelfield.report.figures import Results, report_figures
from levelfield.report.figures.style import style, to_pdf, to_svg
from levelfield.storage.atomic import write_atomically
from levelfield.study.folder import StudyFolder

PAPER_WIDTH = 6.9  # inches: both columns of a conference's page, where 9 points are 9 points


def write_figures(study: StudyFolder, folder: Path) -> list[Path]:
    """Write each figure of the report and return the paths.

    The letters are in the files (outlines in SVG, the font in PDF), no dates are: the same study gives the same bytes
    with the same version of matplotlib. What there is nothing to draw in is left out.
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
