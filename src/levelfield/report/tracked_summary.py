"""A study's tables, scores and verdicts as another run of its group in W&B."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import yaml

from levelfield.analysis.results import ResultRow, SummaryRow, as_frame, collect_rows, summarise
from levelfield.analysis.verdict import verdict_lines
from levelfield.analysis.written_config import class_name
from levelfield.core.configuration import as_list, init_args
from levelfield.study.folder import StudyFolder
from levelfield.study.lock import writing
from levelfield.training.trackers import QUIET, WANDB, left_out


def track_summary(study: StudyFolder) -> None:
    """Log the end of a study to W&B, once, if the trainings of a method do."""
    loggers = [each for config in study.spec.methods.values() for each in as_list(config["trainer"].get("logger"))]
    given = [init_args(each) for each in loggers if isinstance(each, dict | str) and class_name(each) == WANDB]
    if given:
        with writing(study.folder):
            _to_wandb(study, given[0])


def _to_wandb(study: StudyFolder, given: dict[str, Any]) -> None:
    import wandb

    spec, rows = study.spec, collect_rows(study)
    summary, verdicts = summarise(rows), verdict_lines(rows, spec)
    identity = f"{spec.name} {spec.configuration_hash()} {[*map(astuple, rows)]} {verdicts}"
    number = hashlib.sha256(identity.encode()).hexdigest()[:16]
    if list(study.folder.glob(f"wandb/*run-*-{number}")):
        return
    run = wandb.init(
        project=given.get("project") or os.environ.get("WANDB_PROJECT", "lightning_logs"),  # as Lightning
        entity=given.get("entity"),
        dir=study.folder,
        mode="offline" if given.get("offline") else None,
        id=number,
        group=given.get("group") or left_out(given, {"group": spec.name}).get("group"),
        name=f"{spec.name} test",
        job_type="test",
        settings=QUIET,
        config={"study": spec.name, **yaml.safe_load(spec.to_yaml())},
    )
    logged = {"verdicts": wandb.Table(columns=["verdict"], data=[[line] for line in verdicts])}
    for name, frame in {"results": as_frame(rows, ResultRow), "summary": as_frame(summary, SummaryRow)}.items():
        cells = frame.astype(object).where(frame.notna(), None)
        logged[name] = wandb.Table(columns=[*frame], data=cells.to_numpy().tolist())
    run.log(logged)
    run.summary.update(scores_by_key(summary))
    run.finish()


def scores_by_key(summary: Sequence[SummaryRow]) -> dict[str, float]:
    """`test/<method>/<embedding>/<metric>`, and with `_ci95` half the width of its interval, as fractions."""
    found = {}
    for row in summary:
        key = f"test/{row.method}/{row.embedding}/{row.metric}"
        found[key] = row.mean
        if row.ci95 is not None:
            found[f"{key}_ci95"] = row.ci95
    return found
