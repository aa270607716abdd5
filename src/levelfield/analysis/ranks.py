"""Ranks of methods over several data sets and their critical-difference diagram."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from levelfield.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVEL = 0.05
FEWEST_METHODS, FEWEST_DATASETS = 3, 2

# The diagram is laid out in inches, so that no label depends on another's room.
SCALE, EDGE, ROW, TOP, BAR, LETTER = 5.0, 0.15, 0.22, 0.95, 0.11, 0.09
INK, FAINT, GROUP = "#222222", "#888888", "#2a6fbb"


@dataclass(frozen=True)
class Ranks:
    """Where methods stand on average over data sets, the best at 1.

    Args:
        mean_ranks: Mean rank by method, the best first; methods of equal score share their mean rank.
        datasets: The data sets that were averaged over.
        p: Friedman's test that no method ranks better than another.
        critical_difference: Mean ranks that differ by this much or more differ at the level of 5%, all pairs counted.
    """

    mean_ranks: dict[str, float]
    datasets: tuple[str, ...]
    p: float
    critical_difference: float

    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of two and more neighbours among which no difference is shown."""
        methods, ranks = list(self.mean_ranks), list(self.mean_ranks.values())
        found: list[tuple[int, int]] = []
        for start, rank in enumerate(ranks):
            end = sum(other - rank < self.critical_difference for other in ranks)
            if end - start > 1 and (not found or end > found[-1][1]):
                found.append((start, end))
        return [tuple(methods[start:end]) for start, end in found]


def rank_methods(scores: Mapping[str, Mapping[str, float]]) -> Ranks:
    """Rank the methods that all data sets have in common.

    With N data sets and k methods, Friedman's test and Nemenyi's critical difference CD = q √(k (k + 1) / (6 N)), q
    being the 95% quantile of the studentized range of k and infinitely many degrees of freedom over √2 (Demšar, 2006).
    Both hold for many data sets; with few of them they err seldom and show little.

    Args:
        scores: Data set to method to score, the higher the better.

    Raises:
        UserError: fewer than 2 data sets or fewer than 3 common methods.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    common = [m for m in next(iter(scores.values()), {}) if all(m in by_method for by_method in scores.values())]
    if len(scores) < FEWEST_DATASETS or len(common) < FEWEST_METHODS:
        raise UserError(
            f"ranks need at least {FEWEST_DATASETS} data sets with {FEWEST_METHODS} methods in common; "
            f"{', '.join(scores) or 'no data set'} have in common: {', '.join(common) or 'none'}"
        )
    table = np.array([[by_method[method] for method in common] for by_method in scores.values()])
    ranks = rankdata(-table, axis=1).mean(axis=0)
    datasets, k = table.shape
    q = float(studentized_range.ppf(1 - LEVEL, k, np.inf)) / 2**0.5
    best_first = np.argsort(ranks, kind="stable")
    varied = np.ptp(table, axis=1).any()
    return Ranks(
        mean_ranks={common[i]: float(ranks[i]) for i in best_first},
        datasets=tuple(scores),
        p=float(friedmanchisquare(*table.T).pvalue) if varied else 1.0,
        critical_difference=q * (k * (k + 1) / (6 * datasets)) ** 0.5,
    )


def ranks_figure(ranks: Ranks) -> "Figure":
    """Critical-difference diagram: methods at their mean ranks, bars over those with no difference shown."""
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
    # Half a row apart, the lines of two equal methods do not run into one.
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
    """The axis of ranks, and above it the critical difference at its scale and what was tested."""
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
    text = f"critical difference {ranks.critical_difference:.1f}; a bar joins methods with no difference shown"
    if length > end - start:
        text = f"critical difference {ranks.critical_difference:.1f}: more than any two can differ on so few data sets"
        axes.text(start, 0.45, text, va="center", fontsize=8, color=INK)
        return
    axes.plot([start, start, start + length, start + length], [0.56, 0.62, 0.62, 0.56], color=INK, linewidth=1)
    axes.text(start, 0.45, text, ha="left", va="center", fontsize=8, color=INK)
