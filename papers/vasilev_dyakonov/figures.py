"""The sixteen losses of Vasilev and D'yakonov ranked over their six data sets, by recall@1 and by MAP@R."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from levelfield.report.figures.style import new_figure
from papers.drawing import Drawing, Records, draw_two_orders, markdown_table
from papers.published import scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"precision_at_1": "recall@1", "map_at_r": "MAP@R"}
SIX_DATASETS = ("cars196", "cub200", "sop", "dogs130", "news20", "wos134")


class Ranks(NamedTuple):
    """Mean rank of each method, 1 for the best; Friedman's p; Nemenyi's critical difference at 5%."""

    mean_ranks: dict[str, float]
    p: float
    critical_difference: float


def ranks_over_datasets(metric: str) -> Ranks:
    """The sixteen losses over the six data sets (Demšar 2006: CD = q √(k (k + 1) / (6 N)) for k methods on N sets).

    Args:
        metric: `precision_at_1` (their recall@1) or `map_at_r`.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    found = [scores("vasilev_dyakonov", dataset, metric) for dataset in SIX_DATASETS]
    methods = list(found[0])
    table = np.array([[each[method] for method in methods] for each in found])
    ranks, (N, k) = rankdata(-table, axis=1).mean(axis=0), table.shape
    q = float(studentized_range.ppf(0.95, k, np.inf)) / 2**0.5
    order = np.argsort(ranks, kind="stable")
    p = float(friedmanchisquare(*table.T).pvalue)
    return Ranks({methods[i]: float(ranks[i]) for i in order}, p, q * (k * (k + 1) / (6 * N)) ** 0.5)


def rank_lines(studies: Records) -> list[str]:
    """A row for each loss with its mean rank by each metric; then Friedman's p and Nemenyi's critical difference."""
    found = [ranks_over_datasets(metric) for metric in METRICS]
    rows = [[method, *(f"{ranks.mean_ranks[method]:.1f}" for ranks in found)] for method in found[0].mean_ranks]
    rows.append(["Friedman's p", *(f"{ranks.p:.3f}" for ranks in found)])
    rows.append(["critical difference (Nemenyi, 5%)", *(f"{ranks.critical_difference:.1f}" for ranks in found)])
    return markdown_table(["mean rank of 16, six data sets", *METRICS.values()], rows)


def draw_ranks(studies: Records) -> "Figure":
    """A line for each loss, from its place by recall@1 to its place by MAP@R, with its mean ranks."""
    figure = new_figure(3.8, width=6.0)
    by_recall, by_map = (ranks_over_datasets(metric) for metric in METRICS)
    axes = figure.subplots()
    draw_two_orders(axes, by_recall.mean_ranks, by_map.mean_ranks, ("recall@1", "MAP@R"), best_is_most=False)
    axes.set_title(f"Mean rank on six data sets; {by_recall.critical_difference:.1f} apart would differ")
    return figure


FIGURES = {"ranks": Drawing("Sixteen losses ranked over six data sets", rank_lines, draw_ranks)}
