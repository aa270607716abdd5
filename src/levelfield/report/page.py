"""`report/index.html`: a study as one page, from its folder alone; the same folder gives the same bytes."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.conclusion import two_sentences
from levelfield.analysis.results import EMBEDDING_KINDS, ResultRow, SummaryRow, collect_rows, embedding_kinds, summarise
from levelfield.analysis.selection import selected
from levelfield.analysis.verdicts import CAVEAT, all_in_words
from levelfield.metrics.table import SELECTED_BY, SHOWN_METRICS
from levelfield.report.conditions_and_origin import compared, origin, said_setting
from levelfield.report.cost_and_commands import commands, costs
from levelfield.report.figures import Results, report_figures
from levelfield.report.figures.style import style, to_svg
from levelfield.report.score_bars import cells_of, scale_of
from levelfield.report.table import COLLAPSED, footnotes, reopening, score_lines
from levelfield.report.template import inside, render, size_of
from levelfield.storage.atomic import write_atomically
from levelfield.storage.ledger import Ledger
from levelfield.storage.lock import Lock
from levelfield.study.definition.conditions import differing_conditions
from levelfield.study.definition.spec import ONE_PCA, StudySpec
from levelfield.study.definition.sweep import without_value
from levelfield.study.environment import mixed_lines
from levelfield.study.integrity import changed_files, gap_lines
from levelfield.study.record import StudyRecord
from levelfield.study.tested import collapsed

KINDS = {
    PAIR: "Methods against each other",
    SECOND_SEARCH: "Second searches of one method",
    OVER_BASELINE: "Against the trunk without training",
}
# Those of the page in order, by what they show; one that has nothing to show is absent.
SECTIONS = {
    "table": "Scores on unseen classes",
    "compared": "What was compared",
    "comparisons": "Who is better",
    "retrieval": "What is retrieved",
    "similarities": "Similarities",
    "searches": "Search",
    "costs": "Cost",
    "ledger": "Openings of the test classes",
    "origin": "Where the numbers come from",
}
# More sentences than this are folded away below the figure; more than `FEW` on a search's bounds are, too.
MANY, FEW = 30, 4


def write_report(record: StudyRecord) -> Path:
    """Write `report/index.html` and its figures, and return the page's path.

    The page holds the figures too: it can be sent alone. It may be written at any time; what is not done yet is absent.

    Raises:
        UserError: a result is damaged.
    """
    folder, results = record.report_folder, Results(record, collect_rows(record), changed_files(record))
    declared, drawn = report_figures(), draw_figures(results)
    figures = [(declared[name], inside(content), size_of(content)) for name, content in drawn.items()]
    contents = _contents(record, results.rows, results.changed)
    own = list(dict.fromkeys(each.section for each, *_ in figures if each.section not in SECTIONS.values()))
    contents |= {"figures": figures, "own_sections": own, "sections": _sections(contents, own)}
    page = render("page.html.j2", **contents)
    with Lock(record.folder, "report", "report"):  # several processes that share a study end with its page
        for name, content in drawn.items():
            write_atomically(folder / f"{name}.svg", content)
        write_atomically(folder / "index.html", page.encode())
    return folder / "index.html"


def _sections(contents: Mapping[str, Any], own: Sequence[str]) -> dict[str, str]:
    """Anchor to title of each section that the page has, in order; `own` are those of figures without another."""
    always = ["ledger"]
    always += ["retrieval"] if contents["ledger"] else []
    always += ["similarities"] if contents["retrieval"] else []
    found: dict[str, str] = {}
    for name, title in SECTIONS.items():
        if name == "costs":
            found |= {section: section for section in own}
        if name in always or contents.get(name):
            found[name] = title
    return found


def draw_figures(results: Results) -> dict[str, bytes]:
    """Name to SVG of each figure that there is something to draw in."""
    with style():
        pictures = {name: figure.draw(results) for name, figure in report_figures().items()}
        return {name: to_svg(picture) for name, picture in pictures.items() if picture is not None}


def _contents(record: StudyRecord, rows: Sequence[ResultRow], changed: Mapping[Path, str]) -> dict[str, Any]:
    """Everything the template shows but the figures."""
    from levelfield.report.retrieval import retrieval_of  # with torch, which `study status` can spare

    spec, state, ledger = record.spec, record.state, record.ledger
    test, folds = summarise(rows), spec.folds_of("trial")
    reasons = [opening["reason"] for opening in ledger.openings]
    reopened = reopening(reasons)
    by_one_pca = any(without_value(row.method) == ONE_PCA for row in rows)
    warnings = collapsed(record)
    columns, table = _table(spec, test, summarise(rows, stage="run"), warnings)
    notes = footnotes(spec.runs, spec.folds, reasons, [], spec.references, by_one_pca)
    return {
        "name": spec.name,
        "reopened": reopened,
        "compared": compared(record),
        "verdict": two_sentences(rows, spec),
        "columns": columns,
        "table": table,
        "notes": [
            *(note for note in notes if note != reopened),
            *warnings.values(),
            *mixed_lines(record),
            *gap_lines(changed),
        ],
        "caveat": CAVEAT,
        "comparisons": _verdicts(spec, rows),
        "retrieval": retrieval_of(record, rows),
        "many": MANY,
        "few": FEW,
        "conditions": differing_conditions(spec),
        "budget": f"{spec.search.trials} trials a method ({spec.search.sampler}), each on all {folds} folds"
        + f"; of each the best {spec.search.final} trained again with other seeds" * bool(spec.search.final),
        "searches": _searches(record) if spec.search.trials else [],
        "costs": costs(record),
        "commands": commands(record, list(rows)),
        "failed_runs": [(str(job), why) for job, why in state.failures("run").items()],
        "without_setting": state.without_setting(),
        "ledger": _openings(ledger),
        "origin": origin(record),
        "jobs_done": (len(state.jobs) - len(state.to_do), len(state.jobs)),
    }


def _table(
    spec: StudySpec, test: Sequence[SummaryRow], validation: Sequence[SummaryRow], warned: Collection[str]
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The columns of the table of scores, and its lines by the kind of embedding."""
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    validated = {row.method: row for row in validation if row.metric == SELECTED_BY}
    lines = score_lines(spec.rows, test, validation, embedding_kinds(spec))
    by_metric = [[row for row in test if row.metric == metric] for metric in SHOWN_METRICS]
    scales = [scale_of(rows) for rows in (*by_metric, validated.values())]
    names = [*SHOWN_METRICS.values(), f"validation {SHOWN_METRICS[SELECTED_BY]}"]
    columns = [{"name": name, "ends": scale and scale.ends} for name, scale in zip(names, scales, strict=True)]
    table: dict[str, list[dict[str, Any]]] = {}
    for embedding, found in lines.items():
        table[embedding] = []
        for line in found:
            tested = [scores.get((line.method, embedding, metric)) for metric in SHOWN_METRICS]
            cells = cells_of(line, [*tested, validated.get(line.method)], scales)
            name = line.method + COLLAPSED * (line.method in warned)
            table[embedding].append({"method": name, "cells": cells, "runs": line.runs})
    return columns, table


def _verdicts(spec: StudySpec, rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Sentences by metric, kind and embedding; MAP@R, which the search maximises, comes first."""
    found = []
    for metric, title in SHOWN_METRICS.items():
        sentences: dict[tuple[str, str], list[str]] = defaultdict(list)
        for embedding in EMBEDDING_KINDS:
            comparisons = compare_all(rows, list(spec.methods), metric=metric, embedding=embedding)
            for comparison, sentence in zip(comparisons, all_in_words(comparisons), strict=True):
                sentences[comparison.kind, embedding].append(sentence)
        kinds = []
        for kind, title_of_kind in KINDS.items():
            said = {embedding: sentences[kind, embedding] for embedding in EMBEDDING_KINDS}
            groups = [{"embedding": embedding, "sentences": lines} for embedding, lines in said.items() if lines]
            if groups:
                kinds.append({"title": title_of_kind, "groups": groups})
        if kinds:
            found.append({"metric": title, "kinds": kinds})
    return found


def _searches(record: StudyRecord) -> list[dict[str, Any]]:
    return [
        {
            **vars(selection),
            "setting": said_setting(selection.parameters),
            "value": None if selection.value is None else f"{100 * selection.value:.1f}",
        }
        for selection in selected(record).values()
        if record.spec.trials(selection.method)
    ]


def _openings(ledger: Ledger) -> list[dict[str, Any]]:
    """Each opening of the test classes with when it ended."""
    entries = ledger.entries()
    ended = {entry["opening"]: entry["time"] for entry in entries if entry["event"] == "finished"}
    return [{**entry, "ended": ended.get(entry["opening"])} for entry in entries if entry["event"] == "opened"]
