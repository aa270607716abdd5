"""Histograms of the cosines of test samples of one class and of two classes, one panel per row of the table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import BLUE, VERMILION, small_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 50


def _draw(results: Results) -> "Figure | None":
    # these import torch, which `study status` does not need
    from levelfield.analysis.separation import draw_samples, pair_similarities
    from levelfield.analysis.stored_embeddings import one_model_each

    found = {}
    for method, embedded in one_model_each(results.study).items():
        labels = embedded.samples.labels.numpy()
        drawn = draw_samples(labels)
        found[method] = pair_similarities(embedded.samples.embeddings[drawn], labels[drawn])
    return similarities_figure(found) if found else None


FIGURE = ReportFigure(
    "Similarities",
    "Histograms of the cosines of pairs of one class and of two classes, a panel a row, with their separation",
    _draw,
    note="Cosines of all pairs among up to 1,000 test samples, by one model of each row. The number above a panel is "
    "the probability that a pair of one class is more similar than a pair of two classes; 0.5 is chance.",
)


def similarities_figure(pairs: Mapping[str, tuple[Any, Any]]) -> "Figure":
    """One panel per method with two histograms of area 1: same class filled, two classes dashed.

    Args:
        pairs: Method to the cosines of pairs of one class and of two classes.
    """
    import numpy as np
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from levelfield.analysis.separation import separation

    figure, panels = small_panels(len(pairs), 1.3, "cosine", "density")
    lowest = min(min(same.min(), other.min()) for same, other in pairs.values())
    # All cosines of a collapsed embedding are 1, and its bins still need a width.
    edges = np.linspace(min(max(-1.0, float(lowest)), 0.9), 1.0, BINS + 1)
    for axes, (method, (same, other)) in zip(panels, pairs.items(), strict=True):
        axes.set_title(f"{method}  {separation(same, other):.3f}")
        axes.stairs(_density(same, edges), edges, fill=True, color=BLUE, alpha=0.55)
        axes.stairs(_density(other, edges), edges, color=VERMILION, linewidth=1.4, linestyle=(0, (3, 1.5)))
        axes.set_yticks([])
    handles = [
        Patch(color=BLUE, alpha=0.55, label="pairs of one class"),
        Line2D([], [], color=VERMILION, linewidth=1.4, linestyle=(0, (3, 1.5)), label="pairs of two classes"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, fontsize=8.5)
    return figure


def _density(values: Any, edges: Any) -> Any:
    import numpy as np

    return np.histogram(np.clip(values, edges[0], edges[-1]), edges, density=True)[0]
