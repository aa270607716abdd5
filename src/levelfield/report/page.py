"""`report/index.html`: a study as one page, from its folder; the same folder gives the same bytes."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.analysis.comparison import OVER_BASELINE, PAIR, SECOND_SEARCH, compare_all
from levelfield.analysis.conclusion import baselines_of, conclusion, mean_scores
from levelfield.analysis.conditions import collapsed, differing_conditions, warnings
from levelfield.analysis.integrity import changed_files
from levelfield.analysis.results import EMBEDDING_KINDS, ResultRow, collect_rows, embedding_kinds, summarise
from levelfield.analysis.selection import selected
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdicts import all_in_words, better_than, caveat, named
from levelfield.core.files import write_atomically
from levelfield.metrics.definitions import SELECTED_BY, SHOWN_METRICS, as_shown, title_of
from levelfield.report.conditions_and_origin import headline, origin, setting_text, setup
from levelfield.report.cost_and_commands import commands, costs
from levelfield.report.figures import Results, report_figures
from levelfield.report.figures.style import style, to_svg
from levelfield.report.table import COLLAPSED, METRICS, rows_in_order, score_text, unit
from levelfield.report.template import inside, render, size_of
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import StudySpec, is_baseline, one_pca

KINDS = {
    PAIR: "Methods against each other",
    OVER_BASELINE: "Methods against the best untrained row",
    SECOND_SEARCH: "Two searches of one method",
}
# Sections of the template that show figures; a figure of another section gets its own.
SECTIONS = ("Scores", "Comparisons", "Search")
FIRST_ROWS, FIRST_UNTRAINED = 10, 4  # of the short table
LINK = re.compile(r"arXiv:(\d{4}\.\d+)|(https?://\S+[\w/])")


def write_report(study: StudyFolder) -> Path:
    """Write `report/index.html` and its figures, and return the page's path.

    The page is one file with the figures inside. You can write it at any time, from the results so far.

    Raises:
        UserError: a result is damaged.
    """
    folder, results = study.report_folder, Results(study, collect_rows(study), changed_files(study))
    declared, drawn = report_figures(), draw_figures(results)
    figures = [(declared[name], inside(content), size_of(content)) for name, content in drawn.items()]
    own = list(dict.fromkeys(each.section for each, *_ in figures if each.section not in SECTIONS))
    contents = _contents(study, results.rows, results.changed)
    page = render("page.html.j2", figures=figures, own_sections=own, **contents)
    with study.writing():
        for name in declared:
            if name in drawn:
                write_atomically(folder / f"{name}.svg", drawn[name])
            else:
                (folder / f"{name}.svg").unlink(missing_ok=True)  # of an earlier page
        write_atomically(folder / "index.html", page.encode())
    return folder / "index.html"


def draw_figures(results: Results) -> dict[str, bytes]:
    """Name to SVG of each figure that has something to draw."""
    with style():
        figures = {name: figure.draw(results) for name, figure in report_figures().items()}
        return {name: to_svg(figure) for name, figure in figures.items() if figure is not None}


def _contents(study: StudyFolder, rows: Sequence[ResultRow], changed: Mapping[Path, str]) -> dict[str, Any]:
    """Everything in the template except the figures."""
    from levelfield.report.retrieval import retrieval_of  # imports torch, which `study status` does not need

    spec, state, marked, names = study.spec, study.state, collapsed(study), shown_names(study.spec)
    order, kinds = rows_in_order(rows, spec), embedding_kinds(spec)
    untrained = [row for row in order if is_baseline(row)][:FIRST_UNTRAINED]
    first = [*untrained, *(row for row in order if not is_baseline(row))][:FIRST_ROWS]
    beats, groups = _comparisons(spec, rows)
    trials = f"{spec.search.trials} trial{'s' * (spec.search.trials != 1)} of each method"
    return {
        "name": spec.name,
        "headline": headline(study),
        "names": names,
        "conclusion": conclusion(study, rows),
        "warnings": warnings(study, changed),
        "first_scores": _scores(spec, rows, first, kinds[:1], METRICS, marked),
        "left_out": len(order) - len(first),
        "all_scores": _scores(spec, rows, order, kinds, (*SHOWN_METRICS, *spec.own_metrics), marked, full=True),
        "unit": unit(spec),
        "folds": spec.folds,
        "whole_half": spec.whole_half,
        "setup": setup(study),
        "conditions": differing_conditions(spec),
        "better_than": beats,
        "comparisons": groups,
        "caveat": caveat(spec),
        "retrieval": retrieval_of(study, rows),
        "budget": f"{trials} ({spec.search.sampler}), each on {spec.folds_of('trial')} folds",
        "selected_by": title_of(spec.selected_by),
        "searches": _searches(study) if spec.search.trials else [],
        "costs": costs(study),
        "commands": commands(study, list(rows)),
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
    papers = _papers(spec)
    groups: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        one_by_one = dict.fromkeys(name for row in names for name in (row, one_pca(row)))
        groups[kind] = lines = []
        for name in names if kind == "separated" else one_by_one:
            if name not in names and (name, kind, SELECTED_BY) not in scores:
                continue
            found = [scores.get((name, kind, metric)) for metric in metrics]
            found += [validated.get(name) if kind == "separated" else None] * full
            cells = [{"text": score_text(row), "value": row and row.mean} for row in found]
            if full:
                runs = next((row.n for row in found if row is not None), 0)
                cells.append({"text": str(runs), "value": runs})
            mark = COLLAPSED * (name in marked)
            lines.append({"row": name, "mark": mark, "paper": papers.get(name), "cells": cells})
    more = [f"validation {title_of(spec.selected_by)}", "runs"] if full else []
    return {"columns": [*map(title_of, metrics), *more], "groups": groups, "full": full}


def _papers(spec: StudySpec) -> dict[str, str]:
    """Method to the paper of its loss: the first link in the docstring of a shipped loss."""
    from levelfield import losses

    found = {}
    for method, config in spec.methods.items():
        loss = config.get("model", {}).get("loss") or ""
        name = str(loss["class_path"] if isinstance(loss, Mapping) else loss).removeprefix("levelfield.losses.")
        if link := LINK.search(getattr(getattr(losses, name, None), "__doc__", None) or ""):
            found[method] = link[2] or f"https://arxiv.org/abs/{link[1]}"
    return found


def _comparisons(spec: StudySpec, rows: Sequence[ResultRow]) -> tuple[list[str], list[dict[str, Any]]]:
    """Which methods are better by separated MAP@R, and all sentences, in groups with a title."""
    names, baselines = shown_names(spec), baselines_of(mean_scores(rows), spec)
    beats: list[str] = []
    groups: list[dict[str, Any]] = []
    for embedding in EMBEDDING_KINDS:
        compared = compare_all(rows, list(spec.methods), SELECTED_BY, embedding, baselines, spec.halves)
        found = [named(each, names) for each in compared]
        if embedding == "separated":
            beats = better_than([each for each in found if each.kind == PAIR])
        sentences = list(zip(found, all_in_words(found), strict=True))
        for kind, heading in KINDS.items():
            of_kind = [sentence for each, sentence in sentences if each.kind == kind]
            if of_kind:
                groups.append({"title": f"{heading}, {embedding} ({len(of_kind)})", "sentences": of_kind})
    return beats, groups


def _searches(study: StudyFolder) -> list[dict[str, Any]]:
    return [
        {
            **vars(selection),
            "setting": setting_text(selection.parameters),
            "value": None if selection.value is None else as_shown(study.spec.selected_by, selection.value),
        }
        for selection in selected(study).values()
        if study.spec.trials(selection.method)
    ]
