"""Figure 1 of the Reality Check: three embedding spaces that Recall@1, NMI and F1 cannot tell apart."""

from typing import TYPE_CHECKING

from levelfield.analysis.toy_embeddings import BLOCKS, toy_embeddings, toy_scores
from levelfield.report.figures.style import BLUE, ORANGE, new_figure
from levelfield.report.paper_figures import PaperFigure, Records, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"precision_at_1": "Recall@1", "nmi": "NMI", "f1": "F1", "r_precision": "R-precision", "map_at_r": "MAP@R"}
# The values that stand below the paper's panels are in its picture alone; this is what its text says of them.
SAID = {
    "precision_at_1": "nearly 100 in all",
    "nmi": "roughly equal in all",
    "f1": "roughly equal in all",
    "r_precision": "more informative than Recall@1",
    "map_at_r": "more informative than Recall@1",
}


def lines(records: Records) -> list[str]:
    """A row a metric, a column a panel, and what the paper says."""
    scores = {panel: toy_scores(panel) for panel in BLOCKS}
    rows = [
        [title, *(f"{100 * scores[panel][metric]:.1f}" for panel in BLOCKS), SAID[metric]]
        for metric, title in TITLES.items()
    ]
    return table(["percent", *(f"({panel})" for panel in BLOCKS), "the paper's text"], rows)


def draw(records: Records) -> "Figure":
    """The points of the three panels, each with its scores below."""
    figure = new_figure(1.95)
    for axes, panel in zip(figure.subplots(1, len(BLOCKS), sharex=True, sharey=True), BLOCKS, strict=True):
        embeddings, labels = toy_embeddings(panel)
        for label, colour in enumerate((BLUE, ORANGE)):
            points = embeddings[labels == label]
            axes.plot(points[:, 0], points[:, 1], ".", color=colour, markersize=1.6, mew=0)
        scores = toy_scores(panel)
        axes.set_title(f"({panel})")
        axes.set_aspect(1.6)
        axes.set_xlabel("\n".join(f"{title} {100 * scores[metric]:.1f}" for metric, title in TITLES.items()))
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


PAPER_FIGURE = PaperFigure("reality_check/figure1", "What Recall@1, NMI and F1 hide", lines, draw)
