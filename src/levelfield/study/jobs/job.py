"""Jobs of a study: their order, folders, seeds, configurations and results."""

import copy
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.seeds import seed_of
from levelfield.storage.atomic import storing
from levelfield.storage.file_hash import file_hash
from levelfield.study.definition.configuration import Config, set_dotted
from levelfield.study.definition.search_settings import SECOND_SEARCH_MARK
from levelfield.study.definition.spec import WHOLE_HALF, StudySpec, baseline_of, digest, is_baseline, reference_of
from levelfield.study.definition.sweep import method_folder

RESULT = "result.json"
CHECKPOINT = "best.ckpt"
BASELINE_CHECKPOINT = "pca.safetensors"
REFERENCE_CHECKPOINT = "projection.safetensors"
CONFIG = "config.yaml"
METRICS_FILE = "metrics.csv"
LOGS = (CONFIG, METRICS_FILE)
EMBEDDINGS_FILE = "embeddings.safetensors"
FAILURE_KEYS = ("parameters", "seed", "seconds")
RESULT_KEYS = (*FAILURE_KEYS, "checkpoint", "validation")


@dataclass(frozen=True)
class Job:
    """One training (or, for the baseline, one fit of a PCA): a method in one trial or run on one fold.

    Args:
        stage: What `number` counts: `trial` (of the search), `final` (a second look at one of its best trials) or `run`
            (of the setting that it found).
        number: Which trial or run, from 0; of a `final` the rank of the trial, 0 for the best.
        fold: Which fold is validated, from 0; 0 too where all classes train.
    """

    method: str
    stage: str
    number: int
    fold: int

    @property
    def path(self) -> Path:
        """Folder of the job, relative to the study's."""
        return Path("jobs", method_folder(self.method), f"{self.stage}{self.number}", f"fold{self.fold}")

    @property
    def checkpoint(self) -> Path:
        """What the job learnt, relative to the study's folder: a learner, or the baseline's projection."""
        if reference_of(self.method) is not None:
            return self.path / REFERENCE_CHECKPOINT
        return self.path / (BASELINE_CHECKPOINT if is_baseline(self.method) else CHECKPOINT)

    def __str__(self) -> str:
        return f"{self.method} {self.stage} {self.number} fold {self.fold}"


def study_jobs(spec: StudySpec) -> list[Job]:
    """All jobs in the order they are done: the baselines, then trial by trial and run by run through all methods."""
    trained = [method for method in spec.methods if method not in spec.trained_as and not is_baseline(method)]
    trials = [
        Job(method, "trial", trial, fold)
        for trial in range(spec.search.trials)
        for fold in range(spec.folds_of("trial"))
        for method in trained
        if trial < spec.trials(method)
    ]
    runs = [
        Job(method, "run", run, fold) for run in range(spec.runs) for fold in range(spec.folds) for method in trained
    ]
    finals = [
        Job(method, "final", rank, fold)
        for rank in range(spec.search.final)
        for fold in range(spec.folds_of("final"))
        for method in trained
        if spec.trials(method)
    ]
    baselines = [job for method in spec.rows if is_baseline(method) for job in folds_of(spec, method, 0)]
    return [*baselines, *trials, *finals, *runs]


def method_runs(spec: StudySpec) -> list[tuple[str, int]]:
    """Every (method, run) that is tested; a baseline has one run, for nothing in it is random."""
    return [(method, run) for method in spec.rows for run in range(1 if is_baseline(method) else spec.runs)]


def folds_of(spec: StudySpec, method: str, number: int, stage: str = "run") -> list[Job]:
    """The jobs of one run, or trial, of a method: those of the method that it is trained as."""
    method = spec.trained_as.get(method, method)
    return [Job(method, stage, number, fold) for fold in range(spec.folds_of(stage))]


def job_seed(study_seed: int, job: Job) -> int:
    """Seed of a job; folds and methods share it, for equal conditions, and a method searched again has its own."""
    search = job.method.partition(SECOND_SEARCH_MARK)[2]
    number = 0 if job.stage == "final" else job.number  # the same for those that one is chosen of
    return seed_of(study_seed, job.stage, number, *([search] if search else []), bits=32)


def job_config(spec: StudySpec, job: Job, parameters: Mapping[str, Any]) -> Config:
    """The configuration that `levelfield fit --config` would take to do the job.

    Args:
        parameters: What the search gives it, dotted key to value; laid over the method's own.
    """
    config = copy.deepcopy(spec.methods.get(baseline_of(job.method), spec.baseline_config))
    if is_baseline(job.method):
        config["model"].setdefault("loss", "levelfield.losses.ContrastiveLoss")  # a learner has one; nothing trains it
    for key, value in parameters.items():
        config = set_dotted(config, key, value)
    folds = spec.folds_of(job.stage)
    config["data"] |= {"fold": job.fold, "num_folds": folds} if folds > 1 else {"fold": WHOLE_HALF}
    config["trainer"].setdefault("devices", 1)  # a study begun before studies said so
    config["seed_everything"] = job_seed(spec.seed, job)
    return config


def job_hash(spec: StudySpec, job: Job) -> str:
    method, reference = baseline_of(job.method), reference_of(job.method)
    if method not in spec.methods:
        return spec.baseline_hash(reference)
    found = spec.method_hash(method)
    return found if reference is None else digest({"baseline": found, "reference": reference})


def checkpoint_hash(study_folder: Path, job: Job, result: dict[str, Any]) -> str:
    """SHA-256 of a finished job's checkpoint.

    Raises:
        UserError: the file is not the one the job wrote.
    """
    found = file_hash(study_folder / job.checkpoint)
    if found != result["checkpoint"]:
        raise UserError(
            f"{study_folder / job.checkpoint} has changed since its job ended; "
            f"delete {study_folder / job.path / RESULT} and resume to do this job again"
        )
    return found


def empty_folder(folder: Path) -> None:
    """Begin a job again from its start: nothing of an earlier attempt is left."""
    with storing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)


def read_result(path: Path) -> dict[str, Any] | None:
    """Read a `result.json`; None where the job is still to do.

    Raises:
        UserError: the file is damaged. It is never replaced silently: it was written whole, so the disk or a hand
            changed it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        content = None
    check_whole(path, content, ("method", "configuration"))
    return content


def check_whole(path: Path, content: Any, needed: Iterable[str]) -> None:
    """Refuse what a `result.json` holds if it is no mapping or a key is missing.

    Raises:
        UserError: names the file and the remedy.
    """
    if not isinstance(content, dict) or not set(needed) <= set(content):
        raise UserError(f"{path} is damaged; delete it and resume the study to do this job again")


def failed(result: dict[str, Any]) -> bool:
    """Whether a job ended without a model; `failure` says why."""
    return "failure" in result
