"""The comparison table of a study on the terminal."""

from collections.abc import Sequence
from typing import Protocol

from rich import box
from rich.console import Console
from rich.table import Table

METRIC_TITLES = {"map_at_r": "MAP@R", "r_precision": "R-precision", "precision_at_1": "P@1"}
TOO_FEW_RUNS = "too few runs for an interval"


class Summary(Protocol):
    """Mean of one score over the runs, a fraction, with the half width of its 95% interval."""

    @property
    def method(self) -> str: ...
    @property
    def embedding(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def mean(self) -> float: ...
    @property
    def ci95(self) -> float | None: ...
    @property
    def n(self) -> int: ...


def percent(summary: Summary | None) -> str:
    """`31.2 ± 0.4` in percent; without the interval where there is none."""
    if summary is None:
        return "-"
    interval = "" if summary.ci95 is None else f" ± {100 * summary.ci95:.1f}"
    return f"{100 * summary.mean:.1f}{interval}"


def comparison_table(
    title: str,
    methods: Sequence[str],
    test: Sequence[Summary],
    validation: Sequence[Summary],
    baseline: str,
) -> Table:
    """One row a method: test scores in percent, separated and concatenated, and the validation score beside them.

    Args:
        title: Stands above the table.
        methods: Rows, in order.
        test: Test scores; none before the test classes were opened.
        validation: Scores on the validation folds.
        baseline: The method without training, whose single run is not a sample.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    table.add_column("method", no_wrap=True)
    columns = [(embedding, metric) for embedding in ("separated", "concatenated") for metric in METRIC_TITLES]
    table.add_column("validation\nMAP@R", justify="right")
    for embedding, metric in columns:
        table.add_column(f"{embedding}\n{METRIC_TITLES[metric]}", justify="right")
    table.add_column("runs", justify="right")
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    validated = {row.method: row for row in validation if row.metric == "map_at_r"}
    for method in methods:
        found = [scores.get((method, *column)) for column in columns]
        runs = next((row.n for row in [*found, validated.get(method)] if row is not None), 0)
        table.add_row(
            method, percent(validated.get(method)), *map(percent, found), str(runs), end_section=method == baseline
        )
    return table


def footnotes(runs: int, folds: int, openings: Sequence[str], conditions: Sequence[str]) -> list[str]:
    """What a reader must know to believe the table.

    Args:
        runs: Runs of each method.
        folds: Folds of each run.
        openings: The reason of each opening of the test classes.
        conditions: In what the methods differ besides the method.
    """
    interval = "± is half a 95% t-interval over the runs" if runs >= 3 else TOO_FEW_RUNS
    notes = [
        f"Percent, mean of {runs} run{'s' * (runs != 1)} of {folds} folds; {interval}.",
        "separated: mean of the folds' scores; concatenated: the folds' embeddings side by side, normalised again.",
    ]
    if not openings:
        notes.append("The test classes have not been opened.")
    elif len(openings) == 1:
        notes.append("The test classes were opened once.")
    else:
        again = "; ".join(openings[1:])
        notes.insert(0, f"THE TEST CLASSES WERE OPENED {len(openings)} TIMES. Why again: {again}.")
    notes += [f"Unequal conditions: {sentence}." for sentence in conditions]
    return notes


def print_report(console: Console, table: Table, notes: Sequence[str]) -> None:
    """Print the table and its footnotes; a repeated opening of the test classes comes first."""
    first, *rest = notes
    if first.startswith("THE TEST"):
        console.print(first, style="bold red", highlight=False, markup=False)
        notes = rest
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False)
