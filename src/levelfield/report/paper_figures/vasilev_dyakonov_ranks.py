"""The sixteen losses of Vasilev and D'yakonov ranked over their six data sets, by recall@1 and by MAP@R."""

from typing import TYPE_CHECKING

from levelfield.analysis.paper_figures import vasilev_dyakonov_ranks
from levelfield.report.figures.style import new_figure
from levelfield.report.paper_figures import PaperFigure, Records, table
from levelfield.report.two_orders import draw_two_orders

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"precision_at_1": "recall@1", "map_at_r": "MAP@R"}


def lines(records: Records) -> list[str]:
    """A row a loss with its mean rank by each metric; then what can be said of differences."""
    found = [vasilev_dyakonov_ranks(metric) for metric in METRICS]
    rows = [[method, *(f"{ranks.mean_ranks[method]:.1f}" for ranks in found)] for method in found[0].mean_ranks]
    rows.append(["Friedman's p", *(f"{ranks.p:.3f}" for ranks in found)])
    rows.append(["critical difference (Nemenyi, 5%)", *(f"{ranks.critical_difference:.1f}" for ranks in found)])
    return table(["mean rank of 16, six data sets", *METRICS.values()], rows)


def draw(records: Records) -> "Figure":
    """A line a loss, from its place by recall@1 to its place by MAP@R, the mean ranks beside it."""
    figure = new_figure(3.8, width=6.0)
    by_recall, by_map = (vasilev_dyakonov_ranks(metric) for metric in METRICS)
    axes = figure.subplots()
    draw_two_orders(axes, by_recall.mean_ranks, by_map.mean_ranks, ("recall@1", "MAP@R"), best_is_most=False)
    axes.set_title(f"Mean rank on six data sets; {by_recall.critical_difference:.1f} apart would differ")
    return figure


PAPER_FIGURE = PaperFigure("vasilev_dyakonov/ranks", "Sixteen losses ranked over six data sets", lines, draw)
