"""Two orders of the same methods side by side, a line a method: who moves, and how far."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from levelfield.report.figures.style import BLUE, INK, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR = 3  # places; lines of methods that move farther stand out


def draw_two_orders(
    axes: "Axes",
    left: Mapping[str, float],
    right: Mapping[str, float],
    names: tuple[str, str],
    best_is_most: bool = True,
) -> None:
    """Draw a line from each method's place on the left to its place on the right, the best on top.

    Args:
        axes: A panel of its own.
        left: Method to a value, which is written beside it.
        right: The same methods.
        names: What the two sides are.
        best_is_most: Whether the largest value is the best one; else the least.
    """
    both = (left, right)
    orders = [sorted(values, key=values.__getitem__, reverse=best_is_most) for values in both]
    for method in left:
        places = [order.index(method) for order in orders]
        colour = VERMILION if abs(places[0] - places[1]) > FAR else BLUE
        axes.plot([0, 1], places, "o-", color=colour, markersize=3.5, linewidth=1.2, mew=0)
    for side, (order, values) in enumerate(zip(orders, both, strict=True)):
        for place, method in enumerate(order):
            name = f"{method}  {values[method]:.1f}" if side == 0 else f"{values[method]:.1f}  {method}"
            align, x = ("right", -0.04) if side == 0 else ("left", 1.04)
            axes.text(x, place, name, ha=align, va="center", fontsize=7.5, color=INK)
    axes.set(xlim=(-0.75, 1.75), ylim=(len(orders[0]) - 0.5, -0.7))
    axes.set_xticks([0, 1], names)
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
