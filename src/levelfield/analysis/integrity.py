"""Whether the files of a study's jobs are unchanged since the jobs wrote them."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.core.files import file_hash
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import LOGS, METRICS_FILE, RESULT, failed

# Archives do not have the curves of the trainings.
NOT_ARCHIVED = "is in no archive"


def changed_files(study: StudyFolder) -> dict[Path, str]:
    """Path in the folder to the problem, for each job's `config.yaml` or `metrics.csv` that changed or is missing."""
    found = {}
    for job, result in study.state.results.items():
        for name in LOGS:
            path = study.folder / job.path / name
            recorded = result.get("files", {}).get(name)
            # A short training without validation logs nothing.
            may_lack = name == METRICS_FILE and (not study.spec.trains(job.method) or not result.get("validation"))
            expected = recorded or not (failed(result) or may_lack)
            if not path.is_file():
                if expected:
                    found[job.path / name] = NOT_ARCHIVED if job.method in study.archived else "is missing"
            elif path.stat().st_size == 0:
                found[job.path / name] = "is empty"
            elif recorded and file_hash(path) != recorded:
                found[job.path / name] = "has changed since its job finished"
    return found


def gap_lines(changed: Mapping[Path, str]) -> list[str]:
    """One sentence for each of `changed_files`, except files that archives do not have."""
    return [f"{path} {what}; the page leaves it out." for path, what in changed.items() if what != NOT_ARCHIVED]


def changed_scores(study: StudyFolder) -> Iterator[str]:
    """Trainings whose validation score is not the best one in their `metrics.csv`."""
    damaged = changed_files(study)
    for job, result in study.state.results.items():
        path = job.path / METRICS_FILE
        if failed(result) or not study.spec.trains(job.method) or path in damaged or not result["validation"]:
            continue
        metric = study.spec.selected_by
        scores = validation_scores(study.folder / path, metric)
        stored, best = result["validation"][metric], max(scores.values(), default=None)
        if best != stored or scores.get(result["best_epoch"]) != stored:
            yield f"{job.path}: validation {metric} {stored} is stored, {best} is the best in its {METRICS_FILE}"


def validation_scores(metrics: Path, metric: str = SELECTED_BY) -> dict[int, float]:
    """Epoch, from 0, to the validation score in a job's `metrics.csv`.

    Args:
        metrics: The file.
        metric: MAP@R by default.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(metrics, newline="", encoding="utf-8") as file:
            column = f"val/{metric}"
            return {int(row["epoch"]): float(row[column]) for row in csv.DictReader(file) if row.get(column)}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise UserError(
            f"{metrics} cannot be read ({error}); restore it from a copy, or delete its job's {RESULT} and resume"
        ) from None
