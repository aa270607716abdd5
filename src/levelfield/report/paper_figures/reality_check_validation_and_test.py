"""Validation against test over the Reality Check's methods: whether what is chosen on the folds is best on the test."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levelfield.analysis.paper_figures import validation_against_test
from levelfield.report.figures.style import BLUE, INK, new_figure
from levelfield.report.paper_figures import PaperFigure, table
from levelfield.report.paper_figures.reality_check_figure2 import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from levelfield.study.record import StudyRecord

PANELS = (("cub200", 32), ("cars196", 32), ("sop", 32), ("cub200", 256))


def lines(records: "Sequence[StudyRecord]") -> list[str]:
    """A row a data set: Spearman's correlation of validation MAP@R with each kind of test score."""
    rows = []
    for dataset, batch_size in PANELS:
        found = [
            validation_against_test(dataset, metric, embedding, batch_size)
            for embedding in ("separated", "concatenated")
            for metric in ("map_at_r", "precision_at_1")
        ]
        name = f"{TITLES[dataset]}, batch {batch_size}"
        rows.append([name, str(len(found[0].test)), *(f"{agreement.spearman:.2f}" for agreement in found)])
    headings = ("MAP@R, separated", "P@1, separated", "MAP@R, concatenated", "P@1, concatenated")
    return table(["Spearman with the test's", "methods", *headings], rows)


def draw(records: "Sequence[StudyRecord]") -> "Figure":
    """A panel a data set: a method's test MAP@R against its validation MAP@R."""
    figure = new_figure(5.6)
    for axes, (dataset, batch_size) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        agreement = validation_against_test(dataset, batch_size=batch_size)
        # Names of neighbours in the order go to opposite sides of their points.
        for number, method in enumerate(sorted(agreement.test, key=agreement.test.__getitem__)):
            place = (100 * agreement.validation[method], 100 * agreement.test[method])
            offset, side = ((4, -2), "left") if number % 2 else ((-4, -2), "right")
            axes.plot(*place, "o", color=BLUE, markersize=4, mew=0)
            axes.annotate(method, place, offset, textcoords="offset points", ha=side, fontsize=6.5, color=INK)
        axes.set_title(f"{TITLES[dataset]}, batch {batch_size}: Spearman {agreement.spearman:.2f}")
        axes.margins(0.22, 0.12)
    figure.supxlabel("best validation MAP@R of 50 trials, percent", fontsize=9)
    figure.supylabel("test MAP@R, separated, percent", fontsize=9)
    return figure


PAPER_FIGURE = PaperFigure("reality_check/validation_and_test", "Validation against test over methods", lines, draw)
