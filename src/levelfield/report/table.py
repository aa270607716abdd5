"""The table of a study on the terminal and in a notebook, with its conclusion."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from levelfield.analysis.conditions import collapsed, warnings
from levelfield.analysis.results import ResultRow, SummaryRow, collect_rows, mean_scores, summarise
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.statistics import SMALLEST_SAMPLE
from levelfield.analysis.verdict import conclusion
from levelfield.core.terminal import printable
from levelfield.metrics.definitions import SELECTED_BY, as_shown, is_user_metric, title_of
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import StudySpec, is_baseline, is_one_pca
from levelfield.study.untrained import FEATURES

COLLAPSED = " (collapsed)"
METRICS = (SELECTED_BY, "precision_at_1")  # of the short table; the page has the others
TABLE_WIDTH = 120  # of a notebook or a file
MOST_WARNINGS = 5  # on a screen


def score_text(summary: SummaryRow | None) -> str:
    """`31.2 ± 0.4` in percent, or the plain number of the user's own metric; without ± if there is no interval."""
    if summary is None:
        return "-"
    interval = "" if summary.ci95 is None else f" ± {as_shown(summary.metric, summary.ci95, 2)}"
    return f"{as_shown(summary.metric, summary.mean)}{interval}"


def rows_in_order(rows: Sequence[ResultRow], spec: StudySpec) -> list[str]:
    """The features, then the other untrained rows, then the methods; in each group the best test MAP@R is first."""
    means = {method: row.mean for method, row in mean_scores(rows).items()}
    shown = [row for row in spec.rows if not is_one_pca(row)]  # which is beside the concatenated embeddings only
    features = [row for row in shown if is_baseline(row) and spec.reference_of(row) == FEATURES]
    others = sorted((row for row in shown if row not in features), key=lambda row: -means.get(row, 0.0))
    return [*features, *sorted(others, key=lambda row: not is_baseline(row))]


def unit(spec: StudySpec) -> str:
    """What the numbers of a table mean."""
    own = [*dict.fromkeys(filter(is_user_metric, (*spec.metrics, spec.selected_by)))]
    percent = f"percent ({', '.join(own)}: the number itself)" if own else "percent"
    number, what = (spec.replicates, "replicate") if spec.replicates > 1 else (spec.runs, "run")
    interval = ", ± half a 95% interval" if number >= SMALLEST_SAMPLE else ""
    return f"{percent} on unseen classes, mean of {number} {what}{'s' * (number != 1)}{interval}"


@dataclass(frozen=True, repr=False)
class StudyTable:
    """A titled table with sentences below it: a notebook shows it, `str` returns it as text, rich prints it."""

    title: str
    table: Table
    sentences: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(printable(self.title), style="bold")
        yield self.table
        yield from (Text(printable(sentence)) for sentence in self.sentences)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=TABLE_WIDTH).print(self)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def study_table(study: StudyFolder) -> StudyTable:
    """The separated test scores so far, with warnings and at most three sentences of conclusion.

    It fits a terminal of 80 columns.
    """
    spec, rows, names = study.spec, collect_rows(study), shown_names(study.spec)
    scores = {(row.method, row.metric): row for row in summarise(rows) if row.embedding == "separated"}
    validation = {row.method: row for row in summarise(rows, stage="run")}
    metrics, marked = (*METRICS, *spec.own_metrics), collapsed(study)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    titles = [title_of(metric).replace(".", ".\n") for metric in (*metrics, spec.selected_by)]
    for heading in (*titles[:-1], f"validation\n{titles[-1]}"):
        table.add_column(heading, justify="right", vertical="bottom")
    order = rows_in_order(rows, spec)
    for row, after in zip(order, [*order[1:], ""], strict=True):
        cells = [score_text(scores.get((row, metric))) for metric in metrics]
        name = Text(names[row] + COLLAPSED * (row in marked))
        table.add_row(name, *cells, score_text(validation.get(row)), end_section=is_baseline(row) != is_baseline(after))
    found = warnings(study)
    shown = found if len(found) <= MOST_WARNINGS else found[: MOST_WARNINGS - 1]
    more = [f"{len(found) - len(shown)} more warnings are on the page."] if len(found) > len(shown) else []
    return StudyTable(
        f"{spec.name}: {unit(spec)}", table, [*map("warning: {}".format, shown), *more, *conclusion(study, rows)]
    )


def paper_table(study: StudyFolder, markup: str) -> str:
    """The separated test scores as a table for a paper: names in words, as many digits as the interval allows.

    Args:
        markup: `latex` (for booktabs) or `markdown`.
    """
    import pandas as pd  # half a second that `study status` does not need

    spec, rows, names = study.spec, collect_rows(study), shown_names(study.spec)
    scores = {(row.method, row.metric): row for row in summarise(rows) if row.embedding == "separated"}
    metrics, order = (*METRICS, *spec.own_metrics), rows_in_order(rows, spec)
    best = {metric: max((row.mean for (_, m), row in scores.items() if m == metric), default=0.0) for metric in metrics}
    between, bold = (" $\\pm$ ", "\\textbf{{{}}}") if markup == "latex" else (" ± ", "**{}**")

    def cell(row: SummaryRow | None) -> str:
        if row is None:
            return "-"
        decimals = 1 if row.ci95 is None else decimals_of(row.ci95 * (1 if is_user_metric(row.metric) else 100))
        shown = [row.mean] if row.ci95 is None else [row.mean, row.ci95]
        text = between.join(as_shown(row.metric, value, decimals) for value in shown)
        return bold.format(text) if row.mean == best[row.metric] else text

    cells = [[cell(scores.get((row, metric))) for metric in metrics] for row in order]
    table = pd.DataFrame(cells, [names[row] for row in order], [*map(title_of, metrics)])
    caption = f"{spec.name}: {unit(spec)}"
    if markup == "latex":
        escaped = table.style.format_index(escape="latex").format_index(escape="latex", axis=1)
        return f"% {caption}\n{escaped.to_latex(hrules=True, column_format='l' + 'r' * len(metrics))}".rstrip()
    lines = [["", *table.columns], ["---", *["---:"] * len(metrics)], *table.reset_index().to_numpy().tolist()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", caption])


def decimals_of(interval: float) -> int:
    """Decimals that show one digit of half an interval, two if the first is a 1.

    Example:
        >>> [decimals_of(width) for width in (0.34, 0.14, 2.1, 1.2, 20.0)]
        [1, 2, 0, 1, 0]
    """
    if interval <= 0:
        return 1
    place = math.floor(math.log10(interval))
    return max(0, -place + (interval < 2 * 10**place))
