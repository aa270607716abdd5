"""Critical-difference diagram: methods at their mean ranks, with bars over those that do not differ significantly.

Without scikit-posthocs: its version 0.17 cuts off long names and needs statsmodels and seaborn.
"""

from typing import TYPE_CHECKING

from levelfield.analysis.ranks import Ranks
from levelfield.report.figures.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In inches.
SCALE, EDGE, ROW, TOP, BAR, LETTER = 5.0, 0.15, 0.22, 0.95, 0.11, 0.09
GROUP = "#2a6fbb"


def ranks_figure(ranks: Ranks) -> "Figure":
    """Draw the diagram of `rank_methods`."""
    from matplotlib.figure import Figure

    names, k, groups = list(ranks.mean_ranks), len(ranks.mean_ranks), ranks.groups()
    left, right = names[: (k + 1) // 2], names[(k + 1) // 2 :][::-1]
    margin = EDGE + LETTER * (max(map(len, names)) + 6)
    labels_from = TOP + BAR * (len(groups) + 1) + ROW
    height = labels_from + ROW * (len(left) + 0.5)
    figure = Figure(figsize=(SCALE + 2 * margin, height), dpi=150, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, SCALE + 2 * margin), ylim=(height, 0))

    def place(rank: float) -> float:
        return margin + SCALE * (rank - 1) / (k - 1)

    _draw_scale(axes, ranks, place(1), place(k))
    for row, group in enumerate(groups):
        ends = [place(ranks.mean_ranks[group[0]]) - 0.04, place(ranks.mean_ranks[group[-1]]) + 0.04]
        axes.plot(ends, [TOP + BAR * (row + 1)] * 2, color=GROUP, linewidth=3.5, solid_capstyle="butt")
    # Half a row lower, so that the lines of two equal methods do not coincide.
    columns = ((left, margin - 0.1, "right", 0.0), (right, margin + SCALE + 0.1, "left", 0.5))
    for column, end, side, lower in columns:
        for row, name in enumerate(column):
            rank, y = ranks.mean_ranks[name], labels_from + ROW * (row + lower)
            axes.plot([place(rank), place(rank), end], [TOP, y, y], color=INK, linewidth=0.8)
            label = f"{name}  {rank:.1f}" if side == "right" else f"{rank:.1f}  {name}"
            outside = end - 0.05 if side == "right" else end + 0.05
            axes.text(outside, y, label, ha=side, va="center", fontsize=9, color=INK)
    return figure


def _draw_scale(axes: "Axes", ranks: Ranks, start: float, end: float) -> None:
    """The axis of ranks with the critical difference above it."""
    k = len(ranks.mean_ranks)
    axes.plot([start, end], [TOP, TOP], color=INK, linewidth=1.2)
    for rank in range(1, k + 1):
        x = start + (end - start) * (rank - 1) / (k - 1)
        axes.plot([x, x], [TOP - 0.06, TOP], color=INK, linewidth=1)
        axes.text(x, TOP - 0.09, str(rank), ha="center", va="bottom", fontsize=8, color=FAINT)
    p = "< 0.001" if ranks.p < 0.001 else f"= {ranks.p:.3f}"
    title = f"Mean rank on {len(ranks.datasets)} data sets (1 is best); Friedman's p {p}"
    axes.text(start, 0.2, title, ha="left", va="center", fontsize=10, color=INK)
    length = (end - start) * ranks.critical_difference / (k - 1)
    text = f"critical difference {ranks.critical_difference:.1f}; a bar joins methods that do not differ significantly"
    if length > end - start:
        text = f"critical difference {ranks.critical_difference:.1f}: too large for so few data sets"
        axes.text(start, 0.45, text, va="center", fontsize=8, color=INK)
        return
    axes.plot([start, start, start + length, start + length], [0.56, 0.62, 0.62, 0.56], color=INK, linewidth=1)
    axes.text(start, 0.45, text, ha="left", va="center", fontsize=8, color=INK)
