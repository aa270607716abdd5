"""Section 3.2 of the Reality Check: the lag-one autocorrelation of validation curves, of the studies that one has."""

from levelfield.analysis.study_points import validation_autocorrelations
from levelfield.metrics.table import SHOWN_METRICS
from levelfield.report.paper_figures import PaperFigure, Records, table

SAID = {"precision_at_1": "0.73", "map_at_r": "0.81"}


def lines(records: Records) -> list[str]:
    """A row a metric: the mean over the studies' trainings, and the paper's."""
    found = validation_autocorrelations(records) if records else {}
    rows = []
    for metric, title in SHOWN_METRICS.items():
        mean, trainings = found.get(metric, (None, 0))
        rows.append([title, "-" if mean is None else f"{mean:.2f}", str(trainings), SAID.get(metric, "-")])
    return table(["lag-one autocorrelation", "studies", "trainings", "the paper's"], rows)


PAPER_FIGURE = PaperFigure("reality_check/autocorrelation", "How little noise a validation curve has", lines)
