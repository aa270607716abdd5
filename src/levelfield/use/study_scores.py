"""The test scores of a checkpoint, or of a run, in a study's folder, for a model card."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from levelfield.core.ledger import EVALUATED, LEDGER, read_lines
from levelfield.metrics.table import as_shown, title_of
from levelfield.storage.atomic import read_json
from levelfield.study.folder import SUMMARY_FILE
from levelfield.study.jobs import RESULT
from levelfield.study.spec import STUDY, row_folder


def study_scores(paths: Sequence[Path], hashes: Sequence[str]) -> str | None:
    """The scores of one fold's checkpoint or of a whole run, next to those of its method over all runs.

    Args:
        hashes: SHA-256 of the checkpoints.

    Returns:
        None if they are not in a study's folder, or not the checkpoints that it tested.

    Raises:
        UserError: the study's ledger is damaged.
    """
    folds = [path.resolve().parent for path in paths]
    run = folds[0].parent
    study = run.parent.parent.parent
    test = read_json(run / "test" / RESULT)
    if not (study / STUDY).is_file() or test is None or any(fold.parent != run for fold in folds):
        return None
    lines = (line for line in read_lines(study / LEDGER) if line["event"] == EVALUATED)
    found_line = next((line for line in lines if line["id"] == test.get("evaluation")), None)
    asked = {fold.relative_to(study).as_posix(): content for fold, content in zip(folds, hashes, strict=True)}
    if found_line is None or not asked.items() <= found_line["checkpoints"].items():
        return None
    found = [test["separated"][int(fold.name.removeprefix("fold"))] for fold in folds]
    columns: dict[str, Mapping[str, str]] = {_named(len(found)): _percent(found)}
    whole = len(found) == len(test["separated"]) > 1
    if whole:
        columns["concatenated"] = _percent([test["concatenated"]])
    columns |= _of_all_runs(study / SUMMARY_FILE, run.parent.name, whole)
    rows = [[title_of(metric), *(column.get(metric, "") for column in columns.values())] for metric in found[0]]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [["", *columns], ["---"] * (len(columns) + 1), *rows])
    return (
        f"Percent, {run.name} of `{run.parent.name}` in the study `{study.name}`; ± is half a 95% interval over the "
        f"study's runs.\n\n{table}\n\nThese are the scores of the evaluation of {found_line['time']} "
        f"({found_line['reason']})."
    )


def _named(models: int) -> str:
    return "this model" if models == 1 else f"mean of {models} models"


def _percent(scores: Iterable[Mapping[str, float]]) -> dict[str, str]:
    found = list(scores)
    return {metric: as_shown(metric, fmean(each[metric] for each in found)) for metric in found[0]}


def _of_all_runs(table: Path, folder: str, whole: bool) -> dict[str, dict[str, str]]:
    """The means over runs in `summary.csv` for the method of a folder: of one model, or concatenated."""
    if not table.is_file():
        return {}
    with open(table, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row_folder(row["method"]) == folder]
    wanted = {"separated": "one model", **({"concatenated": "side by side"} if whole else {})}
    columns = {}
    for kind, title in wanted.items():
        if of_kind := [row for row in rows if row["embedding"] == kind]:
            scores = {row["metric"]: _with_interval(row) for row in of_kind}
            columns[f"all {of_kind[0]['n']} runs, {title}"] = scores
    return columns


def _with_interval(row: Mapping[str, Any]) -> str:
    interval = f" ± {as_shown(row['metric'], float(row['ci95']), 2)}" if row["ci95"] else ""
    return f"{as_shown(row['metric'], float(row['mean']))}{interval}"
