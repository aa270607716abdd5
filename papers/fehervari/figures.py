"""Tables 1 to 4 of Fehervari et al.: recall@1 as the methods' papers report it, and as Fehervari et al. measured it."""

from typing import TYPE_CHECKING

from levelfield.report.figures.style import BLUE, FAINT, VERMILION, new_figure, rows_of_methods
from papers.drawing import DATASETS, Drawing, Records, markdown_table
from papers.published import read_table, scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reported_and_measured(dataset: str) -> dict[str, tuple[float | None, float]]:
    """Recall@1 of each method, fractions: what its own paper reports (None if it reports none), and what was measured.

    Args:
        dataset: `cub200`, `cars196` or `sop`; measured with BN-Inception.

    Example:
        >>> reported_and_measured("cub200")["Margin Loss"]
        (0.636, 0.513)
    """
    rows = [row for row in read_table("fehervari", "reported.csv") if row["dataset"] == dataset]
    reported = {row["method"]: round(float(row["percent"]) / 100, 6) for row in rows}
    measured = scores("fehervari", dataset, "precision_at_1", settings={"model.trunk": "bn_inception"})
    return {method: (reported.get(method), score) for method, score in measured.items()}


def correlation_of_orders(dataset: str) -> float:
    """Spearman's correlation of the reported recall@1 with the measured one.

    Source: Fehervari et al. 2019, Tables 1 to 4: "the performance ranking of the tested methods do not follow the
    expected order once the conditions are equal".
    """
    from scipy.stats import spearmanr  # the import takes a second

    both = [pair for pair in reported_and_measured(dataset).values() if pair[0] is not None]
    return float(spearmanr(*zip(*both, strict=True)).statistic)


def table1_lines(studies: Records) -> list[str]:
    """A row for each method, reported and measured on each data set; then the correlation of the two orders."""
    found = {dataset: reported_and_measured(dataset) for dataset in DATASETS}
    rows = [
        [method, *(_percents(found[dataset].get(method, (None, None))) for dataset in DATASETS)]
        for method in found["cub200"]
    ]
    orders = [f"{correlation_of_orders(dataset):.2f}" for dataset in DATASETS]
    headings = ["recall@1, reported and measured", *DATASETS.values()]
    return markdown_table(headings, [*rows, ["Spearman of the two", *orders]])


def draw_table1(studies: Records) -> "Figure":
    """A panel for each data set: a line from each method's reported to its measured score, the best measured on top."""
    figure = new_figure(3.6)
    for axes, (dataset, title) in zip(figure.subplots(1, len(DATASETS)), DATASETS.items(), strict=True):
        recall = sorted(reported_and_measured(dataset).items(), key=lambda item: -item[1][1])
        rows_of_methods(axes, [method for method, _ in recall])
        for row, (_, (reported, measured)) in enumerate(recall):
            axes.plot([100 * measured], [row], "o", color=BLUE, label="measured" if row == 0 else None)
            if reported is not None:
                axes.plot([100 * reported, 100 * measured], [row, row], color=FAINT, linewidth=1.2, zorder=1)
                axes.plot([100 * reported], [row], "o", color=VERMILION, label="reported" if row == 0 else None)
        axes.set_title(f"{title}: Spearman {correlation_of_orders(dataset):.2f}")
        axes.tick_params(axis="y", labelsize=7.5)
    figure.supxlabel("recall@1, percent", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8.5)
    return figure


def _percents(pair: tuple[float | None, float | None]) -> str:
    return " / ".join("-" if score is None else f"{100 * score:.1f}" for score in pair)


FIGURES = {"table1": Drawing("Reported and measured recall@1", table1_lines, draw_table1)}
