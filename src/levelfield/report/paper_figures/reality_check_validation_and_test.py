"""Validation against test over the Reality Check's methods: whether what is chosen on the folds is best on the test."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from levelfield.analysis.paper_figures import validation_against_test
from levelfield.report.figures.style import BLUE, INK, VERMILION, new_figure
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
    """A panel a data set: a line a method, from its place by validation MAP@R to that by test MAP@R.

    The lines of methods that move by more than three places stand out.
    """
    figure = new_figure(5.6)
    for axes, (dataset, batch_size) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        agreement = validation_against_test(dataset, batch_size=batch_size)
        both = (agreement.validation, agreement.test)
        orders = [sorted(scores, key=scores.__getitem__, reverse=True) for scores in both]
        for method in agreement.test:
            places = [order.index(method) for order in orders]
            colour = VERMILION if abs(places[0] - places[1]) > 3 else BLUE
            axes.plot([0, 1], places, "o-", color=colour, markersize=3.5, linewidth=1.2, mew=0)
        for side, (order, scores) in enumerate(zip(orders, both, strict=True)):
            for place, method in enumerate(order):
                name = f"{method}  {100 * scores[method]:.1f}" if side == 0 else f"{100 * scores[method]:.1f}  {method}"
                align, x = ("right", -0.04) if side == 0 else ("left", 1.04)
                axes.text(x, place, name, ha=align, va="center", fontsize=7.5, color=INK)
        axes.set(xlim=(-0.75, 1.75), ylim=(len(orders[0]) - 0.5, -0.7))
        axes.set_xticks([0, 1], ["validation", "test"])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_title(f"{TITLES[dataset]}, batch {batch_size}: Spearman {agreement.spearman:.2f}")
    figure.supxlabel(
        "MAP@R, percent: best of 50 trials on the validation folds, and on the test classes (separated)", fontsize=9
    )
    return figure


PAPER_FIGURE = PaperFigure("reality_check/validation_and_test", "Validation against test over methods", lines, draw)
