"""Validation against test over the Reality Check's methods: whether what is chosen on the folds is best on the test."""

from typing import TYPE_CHECKING

from levelfield.analysis.paper_figures import validation_against_test
from levelfield.report.figures.style import new_figure
from levelfield.report.paper_figures import PaperFigure, Records, table
from levelfield.report.paper_figures.reality_check_figure2 import TITLES
from levelfield.report.two_orders import draw_two_orders

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (("cub200", 32), ("cars196", 32), ("sop", 32), ("cub200", 256))


def lines(records: Records) -> list[str]:
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


def draw(records: Records) -> "Figure":
    """A panel a data set: a line a method, from its place by validation MAP@R to that by test MAP@R."""
    figure = new_figure(5.6)
    for axes, (dataset, batch_size) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        agreement = validation_against_test(dataset, batch_size=batch_size)
        validation, test = (
            {method: 100 * score for method, score in scores.items()}
            for scores in (agreement.validation, agreement.test)
        )
        draw_two_orders(axes, validation, test, ("validation", "test"))
        axes.set_title(f"{TITLES[dataset]}, batch {batch_size}: Spearman {agreement.spearman:.2f}")
    figure.supxlabel(
        "MAP@R, percent: best of 50 trials on the validation folds, and on the test classes (separated)", fontsize=9
    )
    return figure


PAPER_FIGURE = PaperFigure("reality_check/validation_and_test", "Validation against test over methods", lines, draw)
