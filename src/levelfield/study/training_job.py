"""Run one job in this process: a `fit`, and its `result.json` at the end.

A job on several devices is its own command, `python -m levelfield.study.training_job TASK`: Lightning starts the
processes of the other devices by repeating the command.
"""

import json
import os
import pickle
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from levelfield.core.errors import OutOfMemory, TrainingFailed, UserError
from levelfield.core.processes import OF_A_LAUNCHER, end_with_parent, is_first_rank, keep_freed_memory
from levelfield.core.source_identity import sources
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.derived import derive
from levelfield.study.jobs import Task, write_result
from levelfield.study.test_scores import class_sums
from levelfield.study.workers import TRIES, Ended, Outcome, attempt
from levelfield.training.build import Training
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.run_folder import interruptible
from levelfield.training.trackers import QUIET

# Messages of torch, CUDA and the system on exhausted memory.
NO_MEMORY = (
    *("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED", "STATUS_NOT_INITIALIZED"),
    "unable to find an engine",
)
# Seconds that the other processes of a job may continue after one has failed.
LAST_SECONDS = 5.0


def run_job(task: Task, earlier: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a job from its start; writes and returns its result. A failed training is a result too, and so is memory that
    is exhausted in every attempt.

    Args:
        earlier: Why earlier attempts ended.

    Raises:
        OutOfMemory: memory is exhausted.
        UserError: a setting or the data are wrong, or the source code has changed since the study began.
    """
    started = time.monotonic()
    check_sources(task)
    several = task.config["trainer"]["devices"] > 1
    try:
        found = _train_in_processes(task) if several else _train(task)
    except OutOfMemory as error:
        if len(earlier) < TRIES - 1:
            raise
        found = {"failure": f"{error}; the last time when no other job ran"}
    return write_result(task, {"seconds": time.monotonic() - started, **found}, earlier)


# Source digest of each file when this process first saw it: an edited file is not imported again.
_imported: dict[str, str] = {}


def check_sources(task: Task) -> None:
    """Raise an error if the source code has changed since the study began or since this process imported it.

    Raises:
        UserError: names the row and the file.
    """
    here = sources(task.spec.class_settings(task.job.method))
    for file in sorted({*task.sources, *here}):
        imported = _imported.setdefault(file, here[file]) if file in here else None
        if not task.sources.get(file) == here.get(file) == imported:
            raise UserError(
                f"{task.job.method}: {file} has changed since the study or this process began; restore it, or restart "
                "the command (in a notebook the kernel)"
            )


def _train(task: Task) -> dict[str, Any]:
    """The result of the training, or `failure` with the reason."""
    with fixed_threads(task.spec.threads), memory_errors():
        if is_first_rank():
            task.empty_folder()
        try:
            training = Training(
                task.config, task.job_folder, tracked=_tracked(task), trunks=task.folder / TRUNKS
            ).build()
            training.write_config()
            made = derive(task, training) if task.job.method in task.spec.derived else {}
            with interruptible():
                training.trainer.fit(training.model, datamodule=training.datamodule)
        except OutOfMemory:
            raise
        except TrainingFailed as error:
            return {"failure": str(error)}
        best, classes = training.best_queries, dict[str, Any]()
        if best is not None and SELECTED_BY in best[0]:
            classes = {"classes": class_sums(best[0][SELECTED_BY], best[1])}
        return {
            "validation": {} if training.kept_last else {training.selected_by: training.best_score},
            **classes,
            **made,
            "best_epoch": training.best_epoch,
            "ending": training.ending,
            "data": training.datamodule.identity(),
            "provenance": training.provenance(),
        }


def _tracked(task: Task) -> dict[str, Any]:
    """The arguments of a tracker's run."""
    job, study = task.job, task.spec.name
    place = {"method": job.method, "stage": job.stage, job.stage: job.number, "fold": job.fold}
    return {
        "name": str(job),
        "group": study,
        "job_type": job.stage,
        "tags": [job.method, job.stage, f"{job.stage} {job.number}", f"fold {job.fold}"],
        "config": {"study": study, **place},
        "settings": QUIET,
        "id": secrets.token_hex(4),  # W&B's agent and a user give one id to all jobs
    }


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn exhausted memory into an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(words in text for words in NO_MEMORY):
            raise
        raise OutOfMemory(
            f"out of memory ({text[:160] or type(error).__name__}): lower --data.batch_size or the samples' size, or "
            "use GradientCaching (docs/tutorial_gpus.md)"
        ) from error


@contextmanager
def fixed_threads(number: int) -> Iterator[None]:
    """Fix the number of threads, because it changes the last bits of sums and so the weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# A job on several devices.


def _train_in_processes(task: Task) -> dict[str, Any]:
    """`_train` in one process per device, with the same result and errors."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_LAUNCHER}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "task.pickle")
        file.write_bytes(pickle.dumps((task, os.getpid())))
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONSAFEPATH": "1"},  # else a file in the working directory could hide a library
            start_new_session=True,
        )
        assert process.stdout is not None
        outcome = Outcome("died", "its processes died")
        with process:
            try:
                if answer := process.stdout.readline():  # of the first process: the others may fail because of it
                    outcome = Outcome(*json.loads(answer))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=None if outcome.kind in ("done", "died") else LAST_SECONDS)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
    if outcome.kind == "memory":
        raise OutOfMemory(outcome.value)
    if outcome.kind != "done":
        raise Ended(outcome)
    return outcome.value


def main(file: Path) -> int:
    """One process of a job on several devices; the first, or a failing one, prints the outcome as JSON."""
    answer, sys.stdout = sys.stdout, sys.stderr  # only JSON goes to standard output
    task, parent = pickle.loads(file.read_bytes())
    end_with_parent(parent if is_first_rank() else os.getppid())
    keep_freed_memory()
    outcome = attempt(_train, task)
    failed = outcome.kind != "done" or "failure" in outcome.value
    if failed or is_first_rank():
        print(json.dumps(outcome), file=answer, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
