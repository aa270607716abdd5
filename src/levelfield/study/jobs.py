"""The jobs of a study: order, folders, seeds and configurations."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from levelfield.core.configuration import Config, as_list, set_dotted
from levelfield.core.seeds import seed_of
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.spec import WHOLE_HALF, StudySpec, is_baseline, is_one_pca, row_folder, second_search

RESULT = "result.json"
CONFIG, METRICS_FILE = "config.yaml", "metrics.csv"
LOGS = (CONFIG, METRICS_FILE)
CHECKPOINT = "best.ckpt"
EMBEDDINGS_FILE = "tested.safetensors"
VALIDATION = "levelfield.training.callbacks.RetrievalValidation"


@dataclass(frozen=True)
class Job:
    """One training, of no step for an untrained row: a row in one trial or run on one fold.

    Args:
        method: The row.
        stage: `trial` of the search, or `run` of the selected setting.
        number: Number of the trial or run, from 0.
        fold: The validated fold, from 0; also 0 for a training on all classes.
    """

    method: str
    stage: str
    number: int
    fold: int

    @property
    def path(self) -> Path:
        """Folder of the job, relative to the folder of the study."""
        return Path("jobs", row_folder(self.method), f"{self.stage}{self.number}", f"fold{self.fold}")

    def __str__(self) -> str:
        return f"{self.method} {self.stage} {self.number} fold {self.fold}"


@dataclass(frozen=True)
class Task:
    """A job with everything that it needs, for any process on any node.

    Args:
        spec: The study.
        folder: The study's folder.
        parameters: The setting from the search, dotted key to value.
        sources: File to digest of the source code of the row's classes.
        data: Fingerprint of the training half.
        weights: Origin of the trunk's weights; None if unknown.
    """

    spec: StudySpec
    folder: Path
    job: Job
    parameters: dict[str, Any]
    sources: Mapping[str, str]
    data: str
    weights: str | None

    @cached_property
    def config(self) -> Config:
        """The configuration as for `levelfield fit --config`."""
        return job_config(self.spec, self.job, self.parameters)

    @property
    def job_folder(self) -> Path:
        return self.folder / self.job.path


def study_jobs(spec: StudySpec) -> list[Job]:
    """All jobs in order: the untrained rows, then trial by trial and run by run, row by row."""
    trained = [row for row in spec.methods if not is_baseline(row)]
    searched = [row for row in trained if spec.trials(row)]

    def stage(name: str, count: int, rows: list[str]) -> list[Job]:
        return [job for n in range(count) for row in rows for job in folds_of(spec, row, n, name)]

    untrained = [job for row in spec.rows if is_baseline(row) for job in folds_of(spec, row, 0)]
    return [*untrained, *stage("trial", spec.search.trials, searched), *stage("run", spec.runs, trained)]


def row_runs(spec: StudySpec) -> list[tuple[str, int]]:
    """Every (row, run) that is tested; an untrained row is not random and has one run."""
    return [(row, run) for row in spec.rows for run in range(1 if is_baseline(row) else spec.runs)]


def folds_of(spec: StudySpec, row: str, number: int, stage: str = "run") -> list[Job]:
    """The jobs of one run or trial of a row."""
    folds = 1 if is_one_pca(row) else spec.folds_of(stage)
    return [Job(row, stage, number, fold) for fold in range(folds)]


def job_config(spec: StudySpec, job: Job, parameters: Mapping[str, Any]) -> Config:
    """The configuration of a job as for `levelfield fit --config`.

    Args:
        parameters: The setting from the search, dotted key to value, merged over the configuration of the row.
    """
    config = copy.deepcopy(spec.config_of(job.method))
    for key, value in parameters.items():
        config = set_dotted(config, key, value)
    blocks = 1 if is_one_pca(job.method) else max(spec.blocks or spec.folds, spec.folds_of(job.stage))
    config["data"] |= {"fold": job.fold, "num_folds": blocks} if blocks > 1 else {"fold": WHOLE_HALF}
    if job.stage == "trial" and spec.search.random_folds:
        config["data"]["fold_seed"] = spec.seed
    config["trainer"].setdefault("devices", 1)  # even on a machine with several
    if job.method in spec.derived:
        config["trainer"]["max_steps"] = 0
    if spec.selected_by != SELECTED_BY:
        config["trainer"]["callbacks"] = _selecting(config["trainer"].get("callbacks"), spec.selected_by)
    config["seed_everything"] = job_seed(spec, job)
    return config


def _selecting(callbacks: Any, score: str) -> list[Any]:
    """The callbacks with `score` as the one that selects the best epoch."""

    def selects(callback: Any) -> bool:
        name = callback["class_path"] if isinstance(callback, dict) else callback
        return name.rpartition(".")[2] == VALIDATION.rpartition(".")[2]

    given = as_list(callbacks)
    found = given if any(map(selects, given)) else [VALIDATION, *given]  # first, as if none is given
    return [set_dotted(each, "selected_by", score) if selects(each) else each for each in found]


def job_seed(spec: StudySpec, job: Job) -> int:
    """Seed of a job. Folds and rows share it, for equal conditions; a second search has its own."""
    again = second_search(job.method)
    return seed_of(spec.seed, job.stage, job.number, *([again] if again else []), bits=32)


def failed(result: Mapping[str, Any]) -> bool:
    """Whether a job ended without a model; `failure` has the reason."""
    return "failure" in result
