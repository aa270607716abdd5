"""The papers' tables next to a study's on the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelfield.analysis.papers import PaperBeside, papers_beside
from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow
from levelfield.metrics.table import SHOWN_METRICS, title_of
from levelfield.report.table import percent
from levelfield.study.record import StudyRecord

MOST_COLUMNS = 4  # of further metrics, in 80 characters


def print_papers(
    console: Console, record: StudyRecord, test: Sequence[SummaryRow], dataset: str | None = None, paper_key: str = ""
) -> None:
    """Print what the papers report for the study's losses on its data set; nothing where they report nothing.

    Args:
        dataset: Another data set whose published rows are taken.
        paper_key: How the key of the papers begins that are shown; all by default.
    """
    for paper in papers_beside(record, dataset):
        if not paper.counterparts[0].result.paper.startswith(paper_key):
            continue
        for first in (0, *range(len(SHOWN_METRICS), len(paper.metrics), MOST_COLUMNS)):
            size = MOST_COLUMNS if first else len(SHOWN_METRICS)
            console.print(paper_table(paper, test, paper.metrics[first : first + size]))
        console.print("The protocols differ, so a gap between the two is no verdict on either:", style="bold")
        for sentence in paper.differences:
            console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
        console.print()


def paper_table(paper: PaperBeside, test: Sequence[SummaryRow], metrics: Sequence[str]) -> Table:
    """Each method's scores in percent, the paper's below; of four metrics it fits a terminal of 80 columns."""
    table = Table(title=Text(paper.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for metric in metrics:
        table.add_column(title_of(metric), justify="right", no_wrap=True)
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    for embedding in EMBEDDING_KINDS:
        rows = [row for row in paper.counterparts if row.result.embedding == embedding]
        if rows:
            table.add_row(Text(embedding, style="bold"))
        for row in rows:
            ours = (percent(scores.get((row.row, embedding, metric))) for metric in metrics)
            table.add_row(Text(f"  {row.row}"), *ours)
            theirs = (row.result.percent(metric) for metric in metrics)
            table.add_row(Text(f"    {row.said_name}"), *theirs, style="dim", end_section=row is rows[-1])
    return table
