"""`report/index.html`: a study as one page, from its folder; the same folder gives the same bytes."""

import base64
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.conditions import collapsed, differing_conditions, warnings
from levelfield.analysis.results import (
    EMBEDDING_KINDS,
    ResultRow,
    collect_rows,
    embedding_kinds,
    mean_scores,
    summarise,
)
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdict import baselines_of, caveat, conclusion, in_words
from levelfield.core.files import write_atomically
from levelfield.metrics.definitions import SELECTED_BY, SHOWN_METRICS, as_shown, title_of
from levelfield.report.facts import commands, costs, headline, origin, selected, setting_text, setup
from levelfield.report.figures import Results, draw_figures
from levelfield.report.table import COLLAPSED, METRICS, rows_in_order, score_text, unit
from levelfield.study.folder import StudyFolder
from levelfield.study.lock import writing
from levelfield.study.spec import StudySpec, is_baseline, one_pca

KINDS = {
    PAIR: "Methods against each other",
    OVER_BASELINE: "Methods against the best untrained row",
    SECOND_SEARCH: "Two searches of one method",
}
# Sections of the template that show figures; a figure of another section gets its own.
SECTIONS = ("Scores", "Comparisons", "Search")
FIRST_ROWS, FIRST_UNTRAINED = 10, 4  # of the short table


def write_report(study: StudyFolder) -> Path:
    """Write `report/index.html` and its figures, and return the page's path.

    The page is one file with the figures inside. You can write it at any time, from the results so far.

    Raises:
        UserError: a result is damaged.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    folder, results = study.report_folder, Results(study, collect_rows(study))
    drawn = draw_figures(results)
    figures = [(each, base64.b64encode(content).decode(), _size(content)) for each, content in drawn.values()]
    own = dict.fromkeys(each.section for each, *_ in figures if each.section not in SECTIONS)
    how: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    template = Environment(loader=PackageLoader("levelfield.report", "."), **how).get_template("page.html.j2")
    page = template.render(figures=figures, own_sections=[*own], **_contents(results))
    with writing(study.folder):
        for earlier in folder.glob("*.svg"):
            if earlier.stem not in drawn:
                earlier.unlink()
        for name, (_, content) in drawn.items():
            write_atomically(folder / f"{name}.svg", content)
        write_atomically(folder / "index.html", page.encode())
    return folder / "index.html"


def _size(svg: bytes) -> list[int]:
    """Width and height in pixels, so that the page reserves the figure's space."""
    drawing = ElementTree.fromstring(svg)
    return [round(float(drawing.attrib[side].removesuffix("pt")) * 96 / 72) for side in ("width", "height")]


def _contents(results: Results) -> dict[str, Any]:
    """Everything in the template except the figures."""
    from levelfield.report.retrieval import retrieval_of  # imports torch, which `study status` does not need

    study, rows = results.study, results.rows
    spec, state, marked = study.spec, study.state, collapsed(study)
    order, kinds = rows_in_order(rows, spec), embedding_kinds(spec)
    untrained = [row for row in order if is_baseline(row)][:FIRST_UNTRAINED]
    first = [*untrained, *(row for row in order if not is_baseline(row))][:FIRST_ROWS]
    trials = f"{spec.search.trials} trial{'s' * (spec.search.trials != 1)} of each method"
    return {
        "name": spec.name,
        "headline": headline(study),
        "names": shown_names(spec),
        "conclusion": conclusion(study, rows),
        "warnings": warnings(study),
        "first_scores": _scores(spec, rows, first, kinds[:1], METRICS, marked),
        "left_out": len(order) - len(first),
        "all_scores": _scores(spec, rows, order, kinds, (*SHOWN_METRICS, *spec.own_metrics), marked, full=True),
        "unit": unit(spec),
        "whole_half": spec.whole_half,
        "setup": setup(study),
        "conditions": differing_conditions(spec),
        "comparisons": _comparisons(spec, rows),
        "caveat": caveat(spec),
        "retrieval": retrieval_of(study, rows),
        "budget": f"{trials} ({spec.search.sampler}), each on {spec.folds_of('trial')} folds",
        "selected_by": title_of(spec.selected_by),
        "searches": {method: search for method, search in selected(study).items() if spec.trials(method)},
        "setting_text": setting_text,
        "as_shown": partial(as_shown, spec.selected_by),
        "costs": costs(study),
        "commands": commands(study, rows),
        "ledger": study.evaluations(),
        "origin": origin(study),
        "archived": sorted(study.archived),
        "jobs_done": (len(state.jobs) - len(state.to_do), len(state.jobs)),
    }


def _scores(
    spec: StudySpec,
    rows: Sequence[ResultRow],
    names: Sequence[str],
    kinds: Sequence[str],
    metrics: Sequence[str],
    marked: Collection[str],
    full: bool = False,
) -> dict[str, Any]:
    """A table of scores: its columns, and its lines by the kind of embedding.

    Args:
        full: With the validation scores and the number of runs.
    """
    scores = {(row.method, row.embedding, row.metric): row for row in summarise(rows)}
    validated = {row.method: row for row in summarise(rows, stage="run")}

    def line(name: str, kind: str) -> dict[str, Any]:
        found = [scores.get((name, kind, metric)) for metric in metrics]
        found += [validated.get(name) if kind == "separated" else None] * full
        cells = [{"text": score_text(row), "value": row and row.mean} for row in found]
        if full:
            runs = next((row.n for row in found if row is not None), 0)
            cells.append({"text": str(runs), "value": runs})
        return {"row": name, "mark": COLLAPSED * (name in marked), "cells": cells}

    listed = dict.fromkeys(each for row in names for each in (row, one_pca(row)))
    groups = {
        kind: [line(name, kind) for name in listed if name in names or (name, kind, SELECTED_BY) in scores]
        for kind in kinds
    }
    more = [f"validation {title_of(spec.selected_by)}", "runs"] if full else []
    return {"columns": [*map(title_of, metrics), *more], "groups": groups, "full": full}


def _comparisons(spec: StudySpec, rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """All sentences, in groups with a title."""
    names, methods, groups = shown_names(spec), list(spec.methods), dict[str, list[str]]()
    how: dict[str, Any] = {"baselines": baselines_of(mean_scores(rows), spec), "halves": spec.halves}
    for embedding in EMBEDDING_KINDS:
        compared = compare_all(rows, methods, embedding=embedding, planned=spec.compare, **how)
        for kind, heading in KINDS.items():
            if sentences := [in_words(each.named(names)) for each in compared if each.kind == kind]:
                groups[f"{heading}, {embedding} ({len(sentences)})"] = sentences
    return groups
