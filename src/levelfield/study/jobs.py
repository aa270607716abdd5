"""The jobs of a study: order, folders, seeds, configurations and the final `result.json`."""

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from levelfield.core.configuration import Config, as_list, set_dotted
from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, file_hash, make_durable, read_json, write_json
from levelfield.core.seeds import seed_of
from levelfield.core.shape import TEXT_OR_NONE, count, finite, has_shape, number
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.spec import WHOLE_HALF, StudySpec, is_baseline, is_one_pca, row_folder, second_search

RESULT = "result.json"
CONFIG, METRICS_FILE = "config.yaml", "metrics.csv"
LOGS = (CONFIG, METRICS_FILE)
CHECKPOINT = "best.ckpt"
EMBEDDINGS_FILE = "tested.safetensors"
SCORES = {str: number}
COMMON = {
    "configuration": str,
    **dict.fromkeys(("method?", "stage?"), str),
    "number?": count,
    "provenance?": {
        "code": {"levelfield": str, "commit": TEXT_OR_NONE, "modified": (bool, type(None))},
        "libraries": {str: str},
        "processor": str,
        "device?": str,
        **dict.fromkeys(("gpu?", "weights?"), TEXT_OR_NONE),
    },
}
# The `result.json` of a job, of a job with a model, and of a test.
JOB_SHAPE = COMMON | {
    "parameters": {str: object},
    "seed": count,
    "seconds": finite,
    "fold?": count,
    **dict.fromkeys(("checkpoint?", "failure?"), str),
    **{key: {str: str} for key in ("sources?", "files?")},
    "validation?": SCORES,
    "classes?": [[number]],  # MAP@R of each validation class: sum and number of queries
    "best_epoch?": int,  # -1: the start was best
    "alpha?": finite,
    "ending?": {"steps": count, "best_step": count, "stopped_by?": str},
    "data?": {
        **dict.fromkeys(("fingerprint", "split"), str),
        "dataset": {"class_path": str, "init_args?": {str: object}},
        **{key: [str] for key in ("train_classes", "val_classes")},
    },
}
MODEL_SHAPE = JOB_SHAPE | {"checkpoint": str, "validation": SCORES}
TEST_SHAPE = COMMON | {
    "evaluation": str,
    "separated": [SCORES],
    "concatenated": SCORES,
    "one_pca?": SCORES,
    "effective_rank?": [number],
    "num_skipped?": count,
    "data?": {"fingerprint": str},
}
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

    @property
    def checkpoint(self) -> Path:
        """The checkpoint that the job writes."""
        return self.job_folder / CHECKPOINT

    def empty_folder(self) -> Path:
        """The folder of the job, without files of earlier attempts."""
        with explain_write_errors(self.job_folder):
            if self.job_folder.exists():
                shutil.rmtree(self.job_folder)
            self.job_folder.mkdir(parents=True)
        return self.job_folder


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
    found = as_list(callbacks)
    names = [each["class_path"] if isinstance(each, dict) else each for each in found]
    places = [place for place, name in enumerate(names) if name.rpartition(".")[2] == VALIDATION.rpartition(".")[2]]
    if not places:  # first, as if none is given
        return [set_dotted(VALIDATION, "selected_by", score), *found]
    return [set_dotted(each, "selected_by", score) if n in places else each for n, each in enumerate(found)]


def job_seed(spec: StudySpec, job: Job) -> int:
    """Seed of a job. Folds and rows share it, for equal conditions; a second search has its own."""
    again = second_search(job.method)
    return seed_of(spec.seed, job.stage, job.number, *([again] if again else []), bits=32)


# result.json


def write_result(task: Task, found: Mapping[str, Any], earlier: Sequence[str] = ()) -> dict[str, Any]:
    """Write `result.json`, the last file of a job, which marks it as finished.

    Args:
        found: The result of the job, or `failure` with the reason.
        earlier: Why earlier attempts ended.

    Raises:
        UserError: the data or the weights have changed since the study began.
    """
    folder = task.job_folder
    data = found.get("data", {}).get("fingerprint", task.data)
    weights = found.get("provenance", {}).get("weights", task.weights)
    for what, before, now in (("data", task.data, data), ("trunk's weights", task.weights, weights)):
        if before not in (now, None):
            raise UserError(f"{folder}: the {what} have changed on disk while the study ran; restore them and resume")
    result: dict[str, Any] = {
        **asdict(task.job),
        "configuration": task.spec.row_hashes[task.job.method],
        "sources": dict(task.sources),
        "parameters": task.parameters,
        "seed": task.config["seed_everything"],
    }
    if not failed(found):
        make_durable(task.checkpoint)
        result["checkpoint"] = file_hash(task.checkpoint)
    logs = [path for path in (folder / name for name in LOGS) if path.is_file()]
    for path in logs:
        make_durable(path)
    result["files"] = {path.name: file_hash(path) for path in logs}
    result |= {**found, **({"earlier_attempts": list(earlier)} if earlier else {})}
    write_json(folder / RESULT, result)
    if task.job.stage != "run" or failed(result):  # a trial is not tested, and hundreds of checkpoints fill a disk
        task.checkpoint.unlink(missing_ok=True)
    return result


def read_result(path: Path, shape: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read a `result.json` of a shape; None if the job is not finished.

    Raises:
        UserError: the file is damaged. It was written completely, so it has changed since then.
    """
    if not path.exists():
        return None
    if not has_shape(content := read_json(path), shape):
        raise UserError(f"{path} is damaged; delete it and resume the study to run the job again")
    return dict(content)


def failed(result: Mapping[str, Any]) -> bool:
    """Whether a job ended without a model; `failure` has the reason."""
    return "failure" in result
