"""The comparison table of a study on the terminal and in a notebook."""

import io
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from levelfield.analysis.cap import cap_lines
from levelfield.analysis.conditions import collapsed, differing_conditions
from levelfield.analysis.integrity import changed_files, gap_lines
from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow, collect_rows, embedding_kinds, summarise
from levelfield.analysis.statistics import TOO_FEW_RUNS
from levelfield.metrics.own import is_own
from levelfield.metrics.table import SELECTED_BY, SHOWN_METRICS, as_shown, title_of
from levelfield.study.folder import StudyFolder
from levelfield.study.same_study import differing_origins, kept_lines
from levelfield.study.spec import (
    BASELINE,
    FEATURES,
    LDA,
    ONE_PCA,
    TO_SIZE,
    UNTRAINED,
    WHITENING,
    StudySpec,
    is_baseline,
    one_pca,
    without_value,
)

COLLAPSED = " (collapsed)"
BRIEF_METRICS = (SELECTED_BY, "precision_at_1")
TABLE_WIDTH = 120  # where there is no terminal to say it


def score_text(summary: SummaryRow | None) -> str:
    """`31.2 ± 0.4` in percent, the number itself of the user's own metric; without the interval where there is none."""
    if summary is None:
        return "-"
    interval = "" if summary.ci95 is None else f" ± {as_shown(summary.metric, summary.ci95, 2)}"
    return f"{as_shown(summary.metric, summary.mean)}{interval}"


class ScoreLine(NamedTuple):
    """A row of the comparison table: a text a metric, that of the validation score, and how many runs."""

    method: str
    scores: list[str]
    validation: str
    runs: int


def score_lines(
    methods: Sequence[str],
    test: Sequence[SummaryRow],
    validation: Sequence[SummaryRow],
    kinds: Sequence[str] = EMBEDDING_KINDS,
    metrics: Sequence[str] = tuple(SHOWN_METRICS),
) -> dict[str, list[ScoreLine]]:
    """The rows of each kind of embedding; the validation scores stand beside the separated test scores.

    A baseline's concatenated embedding by one PCA has a row of its own below the folds' side by side.
    """
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    by_one_pca = {row.method for row in test} & {one_pca(method) for method in methods if is_baseline(method)}
    validated = {row.method: row for row in validation}
    lines: dict[str, list[ScoreLine]] = {embedding: [] for embedding in kinds}
    for embedding, found in lines.items():
        shown = methods
        if embedding == "concatenated":
            pairs = (name for method in methods for name in (method, one_pca(method)))
            shown = [name for name in dict.fromkeys(pairs) if name in methods or name in by_one_pca]
        for method in shown:
            tested = [scores.get((method, embedding, metric)) for metric in metrics]
            beside = validated.get(method)
            runs = next((row.n for row in [*tested, beside] if row is not None), 0)
            said_beside = score_text(beside) if embedding == "separated" else ""
            found.append(ScoreLine(method, list(map(score_text, tested)), said_beside, runs))
    return lines


def comparison_table(
    title: str,
    methods: Sequence[str],
    test: Sequence[SummaryRow],
    validation: Sequence[SummaryRow],
    kinds: Sequence[str] = EMBEDDING_KINDS,
    collapsed: Collection[str] = (),
    metrics: Sequence[str] = tuple(SHOWN_METRICS),
    selected_by: str = SELECTED_BY,
) -> Table:
    """Test scores in percent, one row a method, separated above concatenated; it fits a terminal of 80 columns.

    Args:
        test: Test scores; none before the test classes were evaluated.
        validation: Scores on the validation folds, shown beside the separated test scores.
        kinds: `separated` and `concatenated`, or the former alone.
        collapsed: Methods whose embeddings have collapsed.
        metrics: Shown, in this order.
        selected_by: What the validation scores are.
    """
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    titles = [title_of(metric).replace(".", ".\n") for metric in (*metrics, selected_by)]
    for heading in (*titles[:-1], f"validation\n{titles[-1]}", "runs"):
        table.add_column(heading, justify="right", vertical="bottom")
    for embedding, lines in score_lines(methods, test, validation, kinds, metrics).items():
        if len(kinds) > 1:
            table.add_row(Text(embedding, style="bold"))
        for line in lines:
            cells = (*line.scores, line.validation, str(line.runs))
            name = Text(f"  {line.method}{COLLAPSED * (line.method in collapsed)}")
            table.add_row(name, *cells, end_section=line is lines[-1])
    return table


def footnotes(
    runs: int,
    folds: int,
    evaluations: Sequence[Mapping[str, Any]],
    conditions: Sequence[str],
    references: Sequence[str] = (),
    with_one_pca: bool = False,
    brief: bool = False,
    own: Sequence[str] = (),
) -> list[str]:
    """What a reader must know to believe the table.

    Args:
        folds: Folds of each run; 1 for the whole training half.
        evaluations: The ledger's line of each evaluation of the test classes.
        conditions: In what the methods differ besides the method.
        references: What else the baseline's features are read by.
        with_one_pca: Whether there is a row of the baseline by one PCA.
        brief: Without a line for each row that nothing trains.
        own: The user's own metrics in the table.
    """
    interval = "± is half a 95% t-interval over the runs" if runs >= 3 else TOO_FEW_RUNS
    trained, kinds = (
        f"of {folds} folds",
        ["separated: mean of the folds' scores; concatenated: the folds' embeddings side by side, normalised again."],
    )
    if folds == 1:
        trained = "on the whole training half"
        kinds = ["separated: the last checkpoint of a run's one training; nothing was validated."]
    scale = f"Percent ({', '.join(own)}: the number itself)" if own else "Percent"
    notes = [f"{scale}, mean of {runs} run{'s' * (runs != 1)} {trained}; {interval}."]
    if not brief:
        notes += [
            *kinds,
            f"{BASELINE}: the trunk's features without training, reduced by a PCA of the training classes.",
        ]
        notes += [f"{ONE_PCA}: these features by one PCA to folds x size, as in the Reality Check."] * with_one_pca
        notes += map(_said, references)
    return [*notes, evaluated(evaluations), *(f"Unequal conditions: {sentence}." for sentence in conditions)]


def evaluated(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """How often the test classes have been evaluated, by whom, and why where a person said so.

    Example:
        >>> evaluated([{"by": "study smoke", "reason": ""}, {"by": "levelfield test", "reason": "a better crop"}])
        'The test classes have been evaluated 2 times: study smoke; levelfield test (a better crop).'
    """
    if not evaluations:
        return "The test classes have not been evaluated."
    why = (f"{each['by']} ({each['reason']})" if each.get("reason") else each["by"] for each in evaluations)
    counts = Counter(why)
    listed = "; ".join(f"{who}, {n} times" if n > 1 else who for who, n in counts.items())
    times = "once" if len(evaluations) == 1 else f"{len(evaluations)} times"
    return f"The test classes have been evaluated {times}: {listed}."


def _said(reference: str) -> str:
    """What an untrained row besides the PCA to the methods' size does to the features."""
    what = {
        FEATURES: "the features as they are",
        LDA: "projected by a linear discriminant analysis of the training classes (shrunk covariances)",
        WHITENING: "whitened by the shrunk covariance within the training classes, at full length",
    }
    if reference == UNTRAINED:
        return f"{BASELINE}[{UNTRAINED}-METHOD]: what validation_step of the method's module returns before training."
    if (match := re.fullmatch(TO_SIZE, reference)) is None:
        return f"{BASELINE}[{reference}]: {what[reference]}."
    first = "whitened within the training classes, then " if match[1] == WHITENING else ""
    return f"{BASELINE}[{reference}]: {first}reduced by a PCA to {match[2]}, or as many as there are."


@dataclass(frozen=True, repr=False)
class StudyTable:
    """The comparison table with its footnotes: a notebook shows it, `str` makes text of it, rich prints it."""

    table: Table
    notes: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table
        yield from map(Text, self.notes)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=TABLE_WIDTH).print(self)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def origin_lines(study: StudyFolder) -> list[str]:
    """Rows that were kept though their sources have changed, and versions and devices in which the results differ."""
    return [*kept_lines(study), *differing_origins(study)]


def own_in_table(spec: StudySpec) -> list[str]:
    """The user's own metrics that have a column."""
    return [*dict.fromkeys(filter(is_own, (*spec.metrics, spec.selected_by)))]


def untrained_in_table(spec: StudySpec) -> list[str]:
    """The kinds of untrained rows that a note explains."""
    return [*spec.references, *([UNTRAINED] if spec.modules else [])]


def study_table(study: StudyFolder, brief: bool = False) -> StudyTable:
    """What a study has scored so far.

    Args:
        brief: For a screen: without concatenated embeddings, R-precision and most notes, methods by their MAP@R.
    """
    spec, rows = study.spec, collect_rows(study)
    test, validation, warnings = summarise(rows), summarise(rows, stage="run"), collapsed(study)
    kinds, metrics, shown = embedding_kinds(spec), tuple(SHOWN_METRICS), list(spec.rows)
    if brief:
        kinds, metrics = EMBEDDING_KINDS[:1], BRIEF_METRICS
        means = {row.method: row.mean for row in test if (row.embedding, row.metric) == (kinds[0], SELECTED_BY)}
        untrained = [row for row in spec.rows if is_baseline(row)]
        trained = [row for row in spec.rows if not is_baseline(row)]
        shown = [*untrained, *sorted(trained, key=lambda row: -means.get(row, 0.0))]
    metrics = (*metrics, *spec.own_metrics)
    table = comparison_table(spec.name, shown, test, validation, kinds, warnings, metrics, spec.selected_by)
    by_one_pca = any(without_value(row.method) == ONE_PCA for row in rows)
    conditions, own = [] if brief else differing_conditions(spec), own_in_table(spec)
    references = untrained_in_table(spec)
    notes = footnotes(spec.runs, spec.folds, study.evaluations(), conditions, references, by_one_pca, brief, own)
    return StudyTable(
        table, [*notes, *warnings.values(), *cap_lines(study), *origin_lines(study), *gap_lines(changed_files(study))]
    )
