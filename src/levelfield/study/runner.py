"""Runs a study in this process: the jobs that are to do, then the test stage, then the derived tables."""

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from levelfield.errors import UserError
from levelfield.study.atomic import write_atomically
from levelfield.study.baseline import TrunkFeatures, fit_baseline
from levelfield.study.jobs import Job, done_jobs, finish_job, job_config, study_jobs
from levelfield.study.ledger import Ledger
from levelfield.study.lock import StudyLock
from levelfield.study.progress import StudyProgress
from levelfield.study.results import ResultRow, write_tables
from levelfield.study.spec import BASELINE, StudySpec, check_same_study, spec_from_yaml
from levelfield.study.test_stage import test_study
from levelfield.study.training_job import train
from levelfield.training import build

STUDY = "study.yaml"


def run_study(
    study_folder: Path, spec: StudySpec, console: Console | None = None, reopen: str | None = None
) -> list[ResultRow]:
    """Begin a study, or continue one where it stopped.

    A job with a `result.json` is done; any other is done from its start, in an emptied folder, so that a study that was
    killed ends with the same bytes as one that was not.

    Args:
        study_folder: Where everything is written.
        spec: The study; it must be the one that `study_folder` was begun with, or that one with methods added.
        console: Where progress is shown.
        reopen: Why the test classes are opened another time.

    Returns:
        All scores, as in `results.csv`.

    Raises:
        UserError: another study lies in the folder, or a setting, the data or a result is not usable.
    """
    console = console or Console()
    path = study_folder / STUDY
    if not path.exists() and study_folder.exists() and any(study_folder.iterdir()):
        raise UserError(f"{study_folder} is not empty and holds no {STUDY}; choose another --output")
    if path.exists():
        check_same_study(path, spec)
        if not set(spec.methods) <= set(spec_from_yaml(path).methods) and reopen is None:
            Ledger(study_folder / "ledger.jsonl").refuse_reopening()
    with _threads(spec.threads):
        done = dict(done_jobs(study_folder, spec))
        jobs = study_jobs(spec)
        fingerprint = check_methods(spec) if len(done) < len(jobs) else None
        for job, result in done.items():
            if fingerprint is not None and result["data"]["fingerprint"] != fingerprint:
                raise UserError(
                    f"{study_folder / job.path}: the data set has changed on disk since this job; "
                    "restore it, or choose another --output"
                )
        with StudyLock(study_folder) as lock:
            write_atomically(path, spec.to_yaml().encode())
            seconds = {job: result["seconds"] for job, result in done.items()}
            with StudyProgress(console, spec.name, jobs, seconds) as progress:
                features = TrunkFeatures()
                for job in jobs:
                    if job not in done:
                        lock.describe(str(job))
                        do_job(study_folder, spec, job, features, progress)
                lock.describe("test")
                test_study(study_folder, spec, reopen, progress)
            return write_tables(study_folder, spec)


def do_job(study_folder: Path, spec: StudySpec, job: Job, features: TrunkFeatures, progress: StudyProgress) -> None:
    """Do one job and show it."""
    progress.start(str(job))
    if job.method == BASELINE:
        result = fit_baseline(study_folder, spec, job, features, progress.advance)
    else:
        trained = train(study_folder, spec, job, job_config(spec, job), progress.advance)
        result = finish_job(study_folder, spec, job, trained)
    progress.finish(job, result["seconds"], result["validation"]["map_at_r"])
    gc.collect()  # a Trainer's objects refer to each other: without this a study grows by megabytes a job


def check_methods(spec: StudySpec) -> str:
    """Build every method and read the data's index once, so that a mistake shows before anything is computed.

    Returns:
        Fingerprint of the training half of the data set.
    """
    with tempfile.TemporaryDirectory() as folder:
        for method in spec.methods:
            training = build(job_config(spec, Job(method, "run", 0, 0)), Path(folder), progress=False)
        return training.datamodule.identity()["fingerprint"]


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Fix the number of threads: it changes the last bits of sums, and with them the weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
