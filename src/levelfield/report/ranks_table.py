"""Ranks of methods over several studies on the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from levelfield.analysis.conclusion import evaluated
from levelfield.analysis.ranks import rank_methods
from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow, collect_rows, summarise
from levelfield.analysis.written_config import class_name
from levelfield.core.errors import UserError
from levelfield.core.terminal import printable
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.report.table import StudyTable, score_text
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import STUDY, StudySpec, first_search


def ranks_tables(folders: Sequence[Path]) -> list[StudyTable]:
    """A table of scores and mean ranks for each kind of embedding that all studies have.

    Args:
        folders: Study folders, one per data set. Methods in all are ranked, without second searches (`arcface@2`).

    Raises:
        UserError: a folder has no study or no test scores, two studies have one name, a method has different losses,
            or there are too few studies or methods.
    """
    specs: dict[str, StudySpec] = {}
    summaries: dict[str, list[SummaryRow]] = {}
    evaluations = []
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
        evaluations.append(f"{spec.name}: {evaluated(study.evaluations())}.")
    methods = _common_methods(specs)
    tables = []
    scored = [{row.embedding for row in summary} for summary in summaries.values()]
    kinds = [embedding for embedding in EMBEDDING_KINDS if all(embedding in each for each in scored)]
    for embedding in kinds:
        found = {
            name: {row.method: row for row in summary if row.embedding == embedding and row.method in methods}
            for name, summary in summaries.items()
        }
        tables.append(_table(embedding, found, evaluations if embedding == kinds[-1] else []))
    return tables


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


def _table(embedding: str, scores: dict[str, dict[str, SummaryRow]], evaluations: Sequence[str]) -> StudyTable:
    ranks = rank_methods({name: {m: row.mean for m, row in by_method.items()} for name, by_method in scores.items()})
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for name in (*ranks.datasets, "mean rank"):
        table.add_column(Text(printable(name)), justify="right")
    for method, rank in ranks.mean_ranks.items():
        shown = (score_text(scores[name][method]) for name in ranks.datasets)
        table.add_row(Text(printable(method)), *shown, f"{rank:.1f}")
    p = "< 0.001" if ranks.p < 0.001 else f"= {ranks.p:.3f}"
    least = f"Mean ranks that differ by {ranks.critical_difference:.1f} or more differ significantly (Nemenyi, 5%)."
    groups = [f"No significant difference within: {', '.join(group)}." for group in ranks.groups()]
    title = f"Ranks over {len(ranks.datasets)} studies by MAP@R of {embedding} embeddings, in percent; rank 1 is best"
    return StudyTable(title, table, [f"Friedman's p {p}. {least}", *groups, *evaluations])
