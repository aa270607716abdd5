"""The comparison table of a study on the terminal and in a notebook."""

import io
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow, collect_rows, embedding_kinds, summarise
from levelfield.analysis.statistics import TOO_FEW_RUNS
from levelfield.metrics.table import SELECTED_BY, SHOWN_METRICS
from levelfield.study.definition.conditions import differing_conditions
from levelfield.study.definition.references import said
from levelfield.study.definition.spec import BASELINE, ONE_PCA, is_baseline, one_pca
from levelfield.study.definition.sweep import without_value
from levelfield.study.environment import mixed_lines
from levelfield.study.integrity import changed_files, gap_lines
from levelfield.study.record import StudyRecord
from levelfield.study.tested import collapsed

COLLAPSED = " (collapsed)"
TABLE_WIDTH = 120  # where there is no terminal to say it


def percent(summary: SummaryRow | None) -> str:
    """`31.2 ± 0.4` in percent; without the interval where there is none."""
    if summary is None:
        return "-"
    interval = "" if summary.ci95 is None else f" ± {100 * summary.ci95:.1f}"
    return f"{100 * summary.mean:.1f}{interval}"


class ScoreLine(NamedTuple):
    """A row of the comparison table in percent: a text a metric, that of validation MAP@R, and how many runs."""

    method: str
    scores: list[str]
    validation: str
    runs: int


def score_lines(
    methods: Sequence[str],
    test: Sequence[SummaryRow],
    validation: Sequence[SummaryRow],
    kinds: Sequence[str] = EMBEDDING_KINDS,
) -> dict[str, list[ScoreLine]]:
    """The rows of each kind of embedding; the validation scores stand beside the separated test scores.

    A baseline's concatenated embedding by one PCA has a row of its own below the folds' side by side.
    """
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    by_one_pca = {row.method for row in test} & {one_pca(method) for method in methods if is_baseline(method)}
    validated = {row.method: row for row in validation if row.metric == SELECTED_BY}
    lines: dict[str, list[ScoreLine]] = {embedding: [] for embedding in kinds}
    for embedding, found in lines.items():
        shown = methods
        if embedding == "concatenated":
            pairs = (name for method in methods for name in (method, one_pca(method)))
            shown = [name for name in dict.fromkeys(pairs) if name in methods or name in by_one_pca]
        for method in shown:
            tested = [scores.get((method, embedding, metric)) for metric in SHOWN_METRICS]
            beside = validated.get(method)
            runs = next((row.n for row in [*tested, beside] if row is not None), 0)
            said_beside = percent(beside) if embedding == "separated" else ""
            found.append(ScoreLine(method, list(map(percent, tested)), said_beside, runs))
    return lines


def comparison_table(
    title: str,
    methods: Sequence[str],
    test: Sequence[SummaryRow],
    validation: Sequence[SummaryRow],
    kinds: Sequence[str] = EMBEDDING_KINDS,
    collapsed: Collection[str] = (),
) -> Table:
    """Test scores in percent, one row a method, separated above concatenated; it fits a terminal of 80 columns.

    Args:
        test: Test scores; none before the test classes were opened.
        validation: Scores on the validation folds, shown beside the separated test scores.
        kinds: `separated` and `concatenated`, or the former alone.
        collapsed: Methods whose embeddings have collapsed.
    """
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in (*SHOWN_METRICS.values(), "validation\nMAP@R", "runs"):
        table.add_column(heading, justify="right", vertical="bottom")
    for embedding, lines in score_lines(methods, test, validation, kinds).items():
        table.add_row(Text(embedding, style="bold"))
        for line in lines:
            cells = (*line.scores, line.validation, str(line.runs))
            name = Text(f"  {line.method}{COLLAPSED * (line.method in collapsed)}")
            table.add_row(name, *cells, end_section=line is lines[-1])
    return table


def footnotes(
    runs: int,
    folds: int,
    openings: Sequence[str],
    conditions: Sequence[str],
    references: Sequence[str] = (),
    with_one_pca: bool = False,
) -> list[str]:
    """What a reader must know to believe the table.

    Args:
        folds: Folds of each run; 1 for the whole training half.
        openings: The reason of each opening of the test classes.
        conditions: In what the methods differ besides the method.
        references: What else the baseline's features are read by.
        with_one_pca: Whether there is a row of the baseline by one PCA.
    """
    interval = "± is half a 95% t-interval over the runs" if runs >= 3 else TOO_FEW_RUNS
    trained, kinds = (
        f"of {folds} folds",
        "separated: mean of the folds' scores; concatenated: the folds' embeddings side by side, normalised again.",
    )
    if folds == 1:
        trained = "on the whole training half"
        kinds = "separated: the last checkpoint of a run's one training; nothing was validated."
    notes = [
        f"Percent, mean of {runs} run{'s' * (runs != 1)} {trained}; {interval}.",
        kinds,
        f"{BASELINE}: the trunk's features without training, reduced by a PCA of the training classes.",
        *([f"{ONE_PCA}: these features by one PCA to folds x size, as in the Reality Check."] if with_one_pca else []),
        *said(references, BASELINE),
    ]
    if not openings:
        notes.append("The test classes have not been opened.")
    elif notice := reopening(openings):
        notes.insert(0, notice)
    else:
        notes.append("The test classes were opened once.")
    notes += [f"Unequal conditions: {sentence}." for sentence in conditions]
    return notes


def reopening(openings: Sequence[str]) -> str | None:
    """What the first line says if the test classes were opened more than once, given the reason of each opening."""
    if len(openings) < 2:
        return None
    times = Counter(openings[1:])
    again = "; ".join(f"{why} ({n} times)" if n > 1 else why for why, n in times.items())
    return f"THE TEST CLASSES WERE OPENED {len(openings)} TIMES. Why again: {again}."


@dataclass(frozen=True, repr=False)
class StudyTable:
    """The comparison table with its footnotes: a notebook shows it, `str` makes text of it, rich prints it.

    Of the `notes`, which stand below, a repeated opening of the test classes comes first, above the table.
    """

    table: Table
    notes: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        reopened = self.notes[0].startswith("THE TEST")
        if reopened:
            yield Text(self.notes[0], style="bold red")
        yield self.table
        yield from map(Text, self.notes[reopened:])

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=TABLE_WIDTH).print(self)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def study_table(record: StudyRecord) -> StudyTable:
    """What a study has scored so far."""
    spec, rows = record.spec, collect_rows(record)
    validation, warnings = summarise(rows, stage="run"), collapsed(record)
    table = comparison_table(spec.name, spec.rows, summarise(rows), validation, embedding_kinds(spec), warnings)
    openings = [entry["reason"] for entry in record.ledger.openings]
    by_one_pca = any(without_value(row.method) == ONE_PCA for row in rows)
    notes = footnotes(spec.runs, spec.folds, openings, differing_conditions(spec), spec.references, by_one_pca)
    return StudyTable(table, [*notes, *warnings.values(), *mixed_lines(record), *gap_lines(changed_files(record))])
