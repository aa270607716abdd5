"""Table 3 of the Reality Check: accuracy metrics on hypothetical retrieval results."""

from levelfield.analysis.toy_embeddings import CORRECT_PLACES, RETRIEVAL, hypothetical_scores
from levelfield.report.paper_figures import PaperFigure, Records, table

SAID = {(1,): (100, 10, 10), (1, 10): (100, 20, 12), (1, 2): (100, 20, 20), tuple(range(1, 11)): (100, 100, 100)}


def lines(records: Records) -> list[str]:
    """A row of places that are correct, with Recall@1, R-precision and MAP@R: ours and the paper's."""
    rows = []
    for correct in CORRECT_PLACES:
        scores = hypothetical_scores(correct)
        said = "all 10" if len(correct) == 10 else " and ".join(map(str, correct))
        ours = (f"{100 * scores[metric]:.0f}" for metric in RETRIEVAL)
        rows.append([said, *(f"{here} ({there})" for here, there in zip(ours, SAID[correct], strict=True))])
    return table(["correct of 10 retrieved", "Recall@1", "R-precision", "MAP@R"], rows)


PAPER_FIGURE = PaperFigure("reality_check/table3", "Metrics on hypothetical results; the paper's in brackets", lines)
