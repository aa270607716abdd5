"""Does the jobs of a study one after the other, sharing them with any other process that works on the same folder."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from levelfield.errors import TrainingFailed
from levelfield.storage.lock import Lock
from levelfield.study.baseline import TrunkFeatures, fit_baseline
from levelfield.study.environment import check_environment
from levelfield.study.jobs import Job, finish_job, job_config, read_job
from levelfield.study.progress import StudyProgress
from levelfield.study.spec import BASELINE
from levelfield.study.state import StudyState
from levelfield.study.training_job import train

# Seconds between looks at what other processes have finished, when they hold all that could be done.
PATIENCE = 0.5


def work(state: StudyState, progress: StudyProgress, checkpoint_seconds: float) -> None:
    """Do jobs until none is left, waiting for those that others do; a dead process' jobs are done here.

    Args:
        state: The study.
        progress: Shows what is done, by whomever.
        checkpoint_seconds: How often a job's last state is written.

    Raises:
        UserError: a setting, the data or a result is not usable.
    """
    features = TrunkFeatures()
    while state.to_do:
        if not _do_next(state, features, progress, checkpoint_seconds):
            time.sleep(PATIENCE)
        progress.note_finished(state.refresh())


def _do_next(state: StudyState, features: TrunkFeatures, progress: StudyProgress, checkpoint_seconds: float) -> bool:
    """Do the first job that is ready and that nobody holds; False if there is none."""
    for job in state.ready():
        # The baseline's folds share features: one process does them all.
        part = BASELINE if job.method == BASELINE else job.path.relative_to("jobs")
        lock = Lock(state.study_folder, part, str(job))
        if not lock.acquire():
            continue
        try:
            if read_job(state.study_folder, state.spec, job) is None:
                progress.start(str(job))
                state.add(job, do_job(state, job, features, progress, checkpoint_seconds))
                progress.note_finished([job])
        finally:
            lock.release()
        return True
    return False


def do_job(
    state: StudyState, job: Job, features: TrunkFeatures, progress: StudyProgress, checkpoint_seconds: float
) -> dict:
    """Do one job and write its result; a training that cannot be finished is a result too."""
    folder, spec, parameters = state.study_folder, state.spec, state.parameters(job)
    started = time.monotonic()
    try:
        if job.method == BASELINE:
            found = fit_baseline(folder, spec, job, features, progress.advance)
        else:
            config = job_config(spec, job, parameters)
            found = train(folder, spec, job, config, progress.advance, checkpoint_seconds)
    except TrainingFailed as error:
        found = {"failure": str(error), "seconds": time.monotonic() - started}
    else:
        state.check_data(found["data"])
        check_environment(state, [(job.method, found["provenance"])])
    gc.collect()  # a Trainer's objects refer to each other: without this a study grows by megabytes a job
    return finish_job(folder, spec, job, parameters, found)


@contextmanager
def fixed_threads(number: int) -> Iterator[None]:
    """Fix the number of threads: it changes the last bits of sums, and with them the weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
