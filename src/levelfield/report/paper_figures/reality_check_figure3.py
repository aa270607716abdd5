"""Figure 3 of the Reality Check: relative improvement over the contrastive and the triplet loss."""

from typing import TYPE_CHECKING

from levelfield.analysis.paper_figures import improvements
from levelfield.analysis.study_points import study_improvements
from levelfield.report.figures.style import FAINT, GREEN, INK, VERMILION, new_figure
from levelfield.report.paper_figures import PaperFigure, Records, table
from levelfield.report.paper_figures.reality_check_figure2 import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = (("claimed", FAINT), ("separated", GREEN), ("concatenated", VERMILION))
BASELINES = ("Contrastive", "Triplet")


def lines(records: Records) -> list[str]:
    """A row a baseline and data set, a column a kind of bar; then those of studies."""
    rows = [
        [f"over {over}, {TITLES[found.dataset]}", *map(_percent, (found.claimed, found.separated, found.concatenated))]
        for over in BASELINES
        for found in improvements(over)
    ]
    for record in records:
        rows += [
            [
                f"over {found.over}, study {record.spec.name}",
                "-",
                _percent(found.separated),
                _percent(found.concatenated),
            ]
            for found in study_improvements(record)
        ]
    return table(["relative improvement of P@1, percent", "claimed", "separated, 128", "concatenated, 512"], rows)


def draw(records: Records) -> "Figure":
    """A panel a baseline, a group of bars a data set."""
    figure = new_figure(2.8)
    for axes, over in zip(figure.subplots(1, len(BASELINES)), BASELINES, strict=True):
        groups = improvements(over) + [f for record in records for f in study_improvements(record) if f.over == over]
        for place, (kind, colour) in enumerate(BARS):
            heights = [(x, getattr(group, kind)) for x, group in enumerate(groups)]
            there = [(x + 0.27 * (place - 1), 100 * height) for x, height in heights if height is not None]
            bars = axes.bar([x for x, _ in there], [y for _, y in there], 0.25, color=colour, label=kind)
            axes.bar_label(bars, fmt="%+.1f", fontsize=7, padding=1)
        published = len(improvements(over))
        names = [TITLES.get(group.dataset, group.dataset) for group in groups]
        axes.set_xticks(range(len(groups)), names[:published] + [f"study\n{name}" for name in names[published:]])
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.grid(axis="x", visible=False)
        axes.set_title(f"over {over}")
        axes.margins(y=0.15)
    figure.supylabel("relative improvement of P@1, percent", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:+.1f}"


PAPER_FIGURE = PaperFigure("reality_check/figure3", "Relative improvement over the classic losses", lines, draw)
