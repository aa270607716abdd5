"""Ranks of methods over several studies on one page, with critical-difference diagrams."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.analysis.conclusion import evaluated
from levelfield.analysis.ranks import rank_methods
from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow, collect_rows, summarise
from levelfield.analysis.written_config import class_name
from levelfield.errors import UserError
from levelfield.metrics.table import SELECTED_BY
from levelfield.report.figures.style import style, to_svg
from levelfield.report.ranks_figure import ranks_figure
from levelfield.report.table import score_text
from levelfield.report.template import inside, render
from levelfield.storage.atomic import write_atomically
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import STUDY, StudySpec, first_search


def write_ranks(folders: Sequence[Path], destination: Path) -> Path:
    """Write `ranks.html` and its figures, and return the page's path.

    Args:
        folders: Study folders, one per data set. Methods in all are ranked, without second searches (`arcface@2`).

    Raises:
        UserError: a folder has no study or no test scores, two studies have one name, a method has different losses,
            or there are too few studies or methods.
    """
    specs: dict[str, StudySpec] = {}
    summaries: dict[str, list[SummaryRow]] = {}
    evaluations: dict[str, str] = {}
    for folder in folders:
        if not (folder / STUDY).exists():
            raise UserError(f"{folder} holds no study; give the output folders of finished studies")
        study = StudyFolder.begun(folder)
        spec = study.spec
        if spec.name in specs:
            raise UserError(f"{folder}: there is another study named {spec.name!r}; ranks need one a data set")
        specs[spec.name] = spec
        summaries[spec.name] = [row for row in summarise(collect_rows(study)) if row.metric == SELECTED_BY]
        if not summaries[spec.name]:
            raise UserError(f"{folder} has no test scores yet; resume the study first")
        evaluations[spec.name] = evaluated(study.evaluations())
    methods = _common_methods(specs)
    sections = []
    scored = [{row.embedding for row in summary} for summary in summaries.values()]
    for embedding in filter(set.intersection(*scored).__contains__, EMBEDDING_KINDS):
        found = {
            name: {row.method: row for row in summary if row.embedding == embedding and row.method in methods}
            for name, summary in summaries.items()
        }
        sections.append(_section(embedding, found, destination))
    page = render("ranks.html.j2", specs=specs, sections=sections, evaluations=evaluations)
    write_atomically(destination / "ranks.html", page.encode())
    return destination / "ranks.html"


def _common_methods(specs: dict[str, StudySpec]) -> list[str]:
    """Methods that all studies have, with the same loss, miner and regularizer."""
    first, *others = specs
    common = [m for m in specs[first].methods if m == first_search(m) and all(m in specs[o].methods for o in others)]
    for method in common:
        for other in others:
            here, there = (_kind(specs[name], method) for name in (first, other))
            if here != there:
                raise UserError(f"method {method!r} is {here} in {first} and {there} in {other}; rename one of them")
    return common


def _kind(spec: StudySpec, method: str) -> str:
    """Loss, miner and regularizer of a method, as in `MultiSimilarityLoss with MultiSimilarityMiner`."""
    model: dict[str, Any] = spec.methods[method]["model"]
    beside = [class_name(model[part]) for part in ("miner", "regularizer") if model.get(part)]
    return " with ".join([class_name(model.get("loss") or model["learner"]), *beside])


def _section(embedding: str, scores: dict[str, dict[str, SummaryRow]], destination: Path) -> dict[str, Any]:
    """Ranks by one kind of embedding; writes their figure."""
    ranks = rank_methods({name: {m: row.mean for m, row in by_method.items()} for name, by_method in scores.items()})
    with style():
        svg = to_svg(ranks_figure(ranks))
    write_atomically(destination / f"ranks_{embedding}.svg", svg)
    return {
        "embedding": embedding,
        "figure": inside(svg),
        "lines": [
            {"method": m, "rank": f"{rank:.1f}", "scores": [score_text(scores[name][m]) for name in ranks.datasets]}
            for m, rank in ranks.mean_ranks.items()
        ],
        "groups": [", ".join(group) for group in ranks.groups()],
    }
