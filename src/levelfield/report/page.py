"""`report/index.html`: a study as one page, from its folder alone; the same folder gives the same bytes."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.analysis.cap import cap_lines
from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.conclusion import verdict
from levelfield.analysis.conditions import collapsed, differing_conditions
from levelfield.analysis.integrity import changed_files, gap_lines
from levelfield.analysis.results import EMBEDDING_KINDS, ResultRow, SummaryRow, collect_rows, embedding_kinds, summarise
from levelfield.analysis.selection import selected
from levelfield.analysis.verdicts import CAVEAT, all_in_words
from levelfield.metrics.table import SHOWN_METRICS, as_shown, title_of
from levelfield.report.conditions_and_origin import compared, origin, said_setting
from levelfield.report.cost_and_commands import commands, costs
from levelfield.report.figures import Results, report_figures
from levelfield.report.figures.style import style, to_svg
from levelfield.report.score_bars import cells_of, scale_of
from levelfield.report.table import COLLAPSED, footnotes, origin_lines, own_in_table, score_lines, untrained_in_table
from levelfield.report.template import inside, render, size_of
from levelfield.storage.atomic import write_atomically
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import ONE_PCA, StudySpec, without_value

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
    "ledger": "Evaluations of the test classes",
    "origin": "Where the numbers come from",
}
# More sentences than this are folded away below the figure; more than `FEW` on a search's bounds are, too.
MANY, FEW = 30, 4


def write_report(study: StudyFolder) -> Path:
    """Write `report/index.html` and its figures, and return the page's path.

    The page holds the figures too: it can be sent alone. It may be written at any time; what is not done yet is absent.

    Raises:
        UserError: a result is damaged.
    """
    folder, results = study.report_folder, Results(study, collect_rows(study), changed_files(study))
    declared, drawn = report_figures(), draw_figures(results)
    figures = [(declared[name], inside(content), size_of(content)) for name, content in drawn.items()]
    contents = _contents(study, results.rows, results.changed)
    own = list(dict.fromkeys(each.section for each, *_ in figures if each.section not in SECTIONS.values()))
    contents |= {"figures": figures, "own_sections": own, "sections": _sections(contents, own)}
    page = render("page.html.j2", **contents)
    with study.writing():
        for name in declared:
            if name in drawn:
                write_atomically(folder / f"{name}.svg", drawn[name])
            else:
                (folder / f"{name}.svg").unlink(missing_ok=True)  # of an earlier page
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


def _contents(study: StudyFolder, rows: Sequence[ResultRow], changed: Mapping[Path, str]) -> dict[str, Any]:
    """Everything the template shows but the figures."""
    from levelfield.report.retrieval import retrieval_of  # with torch, which `study status` can spare

    spec, state, evaluations = study.spec, study.state, study.evaluations()
    test, folds = summarise(rows), spec.folds_of("trial")
    by_one_pca = any(without_value(row.method) == ONE_PCA for row in rows)
    warnings = collapsed(study)
    columns, table = _table(spec, test, summarise(rows, stage="run"), warnings)
    own = own_in_table(spec)
    notes = footnotes(spec.runs, spec.folds, evaluations, [], untrained_in_table(spec), by_one_pca, own=own)
    return {
        "name": spec.name,
        "compared": compared(study),
        "verdict": verdict(rows, spec),
        "columns": columns,
        "table": table,
        "notes": [
            *notes,
            *warnings.values(),
            *cap_lines(study),
            *origin_lines(study),
            *gap_lines(changed),
        ],
        "caveat": CAVEAT,
        "comparisons": _verdicts(spec, rows),
        "retrieval": retrieval_of(study, rows),
        "many": MANY,
        "few": FEW,
        "conditions": differing_conditions(spec),
        "budget": f"{spec.search.trials} trials a method ({spec.search.sampler}), each on all {folds} folds",
        "selected_by": title_of(spec.selected_by),
        "searches": _searches(study) if spec.search.trials else [],
        "costs": costs(study),
        "commands": commands(study, list(rows)),
        "failed_runs": [(str(job), why) for job, why in state.failures("run").items()],
        "without_setting": state.without_setting(),
        "ledger": evaluations,
        "origin": origin(study),
        "jobs_done": (len(state.jobs) - len(state.to_do), len(state.jobs)),
    }


def _table(
    spec: StudySpec, test: Sequence[SummaryRow], validation: Sequence[SummaryRow], warned: Collection[str]
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The columns of the table of scores, and its lines by the kind of embedding."""
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    validated = {row.method: row for row in validation}
    metrics = (*SHOWN_METRICS, *spec.own_metrics)
    lines = score_lines(spec.rows, test, validation, embedding_kinds(spec), metrics)
    by_metric = [[row for row in test if row.metric == metric] for metric in metrics]
    scales = [scale_of(rows) for rows in (*by_metric, validated.values())]
    names = [*map(title_of, metrics), f"validation {title_of(spec.selected_by)}"]
    columns = [{"name": name, "ends": scale and scale.ends} for name, scale in zip(names, scales, strict=True)]
    table: dict[str, list[dict[str, Any]]] = {}
    for embedding, found in lines.items():
        table[embedding] = []
        for line in found:
            tested = [scores.get((line.method, embedding, metric)) for metric in metrics]
            cells = cells_of(line, [*tested, validated.get(line.method)], scales)
            name = line.method + COLLAPSED * (line.method in warned)
            table[embedding].append({"method": name, "cells": cells, "runs": line.runs})
    return columns, table


def _verdicts(spec: StudySpec, rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Sentences by metric, kind and embedding; MAP@R comes first."""
    found = []
    for metric, title in SHOWN_METRICS.items():
        sentences: dict[tuple[str, str], list[str]] = defaultdict(list)
        for embedding in EMBEDDING_KINDS:
            comparisons = compare_all(rows, list(spec.methods), metric, embedding, spec.baselines, spec.halves)
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


def _searches(study: StudyFolder) -> list[dict[str, Any]]:
    return [
        {
            **vars(selection),
            "setting": said_setting(selection.parameters),
            "value": None if selection.value is None else as_shown(study.spec.selected_by, selection.value),
        }
        for selection in selected(study).values()
        if study.spec.trials(selection.method)
    ]
