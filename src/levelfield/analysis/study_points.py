"""What a study adds to the Reality Check's figures: its points, bars and validation curves."""

from collections.abc import Sequence
from statistics import fmean

from levelfield.analysis.paper_figures import DATASETS, LEFT_OUT, Improvement, Point, points_of, relative_improvement
from levelfield.analysis.papers import dataset_name, papers_beside
from levelfield.analysis.results import EMBEDDING_KINDS, collect_rows, summarise
from levelfield.errors import UserError
from levelfield.metrics import lag_one_autocorrelation
from levelfield.metrics.table import SHOWN_METRICS
from levelfield.study.definition.spec import is_baseline
from levelfield.study.integrity import changed_files, validation_scores
from levelfield.study.jobs.job import METRICS_FILE, failed
from levelfield.study.jobs.written_config import whole_config
from levelfield.study.record import StudyRecord


def validation_autocorrelations(records: Sequence[StudyRecord]) -> dict[str, tuple[float, int]]:
    """Lag-one autocorrelation of the validation curves of studies: how little noise a metric has from epoch to epoch.

    Args:
        records: Studies whose runs have trained; curves of fewer than three evaluations and flat ones do not count.

    Returns:
        Metric to the mean over trainings and their number, for each metric that validation logs.

    Raises:
        UserError: no training has a curve that counts.

    Source: Musgrave et al. 2020, section 3.2, which has 0.73 for Recall@1 and 0.81 for MAP@R.
    """
    found: dict[str, list[float]] = {metric: [] for metric in SHOWN_METRICS}
    for record in records:
        changed = changed_files(record)
        for job, result in record.state.results.items():
            path = job.path / METRICS_FILE
            if is_baseline(job.method) or failed(result) or path in changed or not result["validation"]:
                continue
            for metric, values in found.items():
                curve = list(validation_scores(record.folder / path, metric).values())
                if len(curve) > 2 and max(curve) > min(curve):
                    values.append(lag_one_autocorrelation(curve))
    if not any(found.values()):
        names = ", ".join(str(record.folder) for record in records)
        raise UserError(f"{names}: no training was validated three times or more; give studies of more epochs")
    return {metric: (fmean(values), len(values)) for metric, values in found.items() if values}


def study_scores(record: StudyRecord, embedding: str, named_on: str | None = None) -> dict[str, float]:
    """A study's mean test P@1 by the Reality Check's names of its methods; empty on a data set that it has not.

    Args:
        named_on: One that it has, by which the methods get their names on any other.
    """
    found = summarise(collect_rows(record))
    rows = {row.method: row.mean for row in found if (row.embedding, row.metric) == (embedding, "precision_at_1")}
    names = {
        counterpart.method: counterpart.result.method
        for paper in papers_beside(record, named_on)
        for counterpart in paper.counterparts
        if counterpart.result.paper == "reality_check"
    }
    return {name: rows[method] for method, name in names.items() if method in rows}


def study_dataset(record: StudyRecord) -> str | None:
    """The name of a study's data set; None for anybody else's, and before the first job has written its settings."""
    config = whole_config(record.folder, next(iter(record.spec.methods)))
    return dataset_name(config["data"]["dataset"]["class_path"]) if config else None


def study_trend(record: StudyRecord) -> tuple[str | None, list[Point]]:
    """A study's points in Figure 2b: its data set, and those of its methods that the Reality Check has."""
    dataset = study_dataset(record)
    return dataset, points_of(study_scores(record, "concatenated", None if dataset in DATASETS else DATASETS[0]))


def study_improvements(record: StudyRecord) -> list[Improvement]:
    """A study's bars in Figure 3, over each classic loss that it has beside others; named by the study."""
    by_kind = {embedding: study_scores(record, embedding) for embedding in EMBEDDING_KINDS}
    counted = {name for scores in by_kind.values() for name in scores if name not in LEFT_OUT}
    return [
        Improvement(
            record.spec.name, over, None, *(relative_improvement(by_kind[kind], over) for kind in EMBEDDING_KINDS)
        )
        for over in ("Contrastive", "Triplet")
        if counted and all(scores.get(over) for scores in by_kind.values())  # nothing is better than 0 by a share
    ]
