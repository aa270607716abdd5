"""Tables 1 to 4 of Fehervari et al.: recall@1 as the methods' papers report it, and as it was measured."""

from typing import TYPE_CHECKING

from levelfield.analysis.paper_figures import DATASETS, reported_order
from levelfield.published.tables import fehervari_recall
from levelfield.report.figures.style import BLUE, FAINT, VERMILION, new_figure, rows_of_methods
from levelfield.report.paper_figures import PaperFigure, Records, table
from levelfield.report.paper_figures.reality_check_figure2 import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lines(records: Records) -> list[str]:
    """A row a method, reported and measured on each data set; then the correlation of the two orders."""
    found = {dataset: fehervari_recall(dataset) for dataset in DATASETS}
    rows = [
        [method, *(_said(*found[dataset].get(method, (None, None))) for dataset in DATASETS)]
        for method in found[DATASETS[0]]
    ]
    orders = [f"{reported_order(dataset):.2f}" for dataset in DATASETS]
    return table(["recall@1, reported and measured", *TITLES.values()], [*rows, ["Spearman of the two", *orders]])


def draw(records: Records) -> "Figure":
    """A panel a data set: a line from what a method's paper reports to what was measured, the best measured on top."""
    figure = new_figure(3.6)
    for axes, dataset in zip(figure.subplots(1, len(DATASETS)), DATASETS, strict=True):
        recall = sorted(fehervari_recall(dataset).items(), key=lambda item: -item[1][1])
        rows_of_methods(axes, [method for method, _ in recall])
        for row, (_, (reported, measured)) in enumerate(recall):
            axes.plot([100 * measured], [row], "o", color=BLUE, label="measured" if row == 0 else None)
            if reported is not None:
                axes.plot([100 * reported, 100 * measured], [row, row], color=FAINT, linewidth=1.2, zorder=1)
                axes.plot([100 * reported], [row], "o", color=VERMILION, label="reported" if row == 0 else None)
        axes.set_title(f"{TITLES[dataset]}: Spearman {reported_order(dataset):.2f}")
        axes.tick_params(axis="y", labelsize=7.5)
    figure.supxlabel("recall@1, percent", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8.5)
    return figure


def _said(reported: float | None, measured: float | None) -> str:
    return " / ".join("-" if score is None else f"{100 * score:.1f}" for score in (reported, measured))


PAPER_FIGURE = PaperFigure("fehervari/table1", "Reported and measured recall@1", lines, draw)
