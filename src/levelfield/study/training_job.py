"""Run one job in this process: a `fit`, and its `result.json` at the end.

A job on several devices is its own command, `python -m levelfield.study.training_job TASK`: Lightning starts the
processes of the other devices by repeating the command.
"""

import json
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from levelfield.core.errors import OutOfMemory, TrainingFailed, UserError
from levelfield.core.files import explain_write_errors, file_hash, write_atomically, write_json
from levelfield.core.processes import OF_A_LAUNCHER, end_with_parent, is_first_rank, keep_freed_memory
from levelfield.core.source_identity import sources
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.derived import derive
from levelfield.study.jobs import CHECKPOINT, LOGS, RESULT, Task, failed
from levelfield.study.test_scores import class_sums
from levelfield.study.workers import TRIES, Outcome, attempt
from levelfield.training.build import Training
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.run_folder import interruptible
from levelfield.training.trackers import QUIET

# Messages of torch, CUDA and the system on exhausted memory.
NO_MEMORY = (
    *("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED", "STATUS_NOT_INITIALIZED"),
    "unable to find an engine",
)


def run_job(task: Task, tried: int = 0) -> dict[str, Any]:
    """Run a job from its start; writes and returns its result. A failed training is a result too, and so is memory that
    is exhausted in every attempt.

    Args:
        tried: Number of earlier attempts.

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
        if tried < TRIES - 1:
            raise
        found = {"failure": f"{error}; the last time when no other job ran"}
    return write_result(task, {"seconds": time.monotonic() - started, **found})


def write_result(task: Task, found: Mapping[str, Any]) -> dict[str, Any]:
    """Write `result.json`, the last file of a job, which marks it as finished.

    Args:
        found: The result of the job, or `failure` with the reason.

    Raises:
        UserError: the data or the weights have changed since the study began.
    """
    folder = task.job_folder
    data = found.get("data", {}).get("fingerprint", task.data)
    weights = found.get("provenance", {}).get("weights", task.weights)
    for what, before, now in (("data", task.data, data), ("trunk's weights", task.weights, weights)):
        if before not in (now, None):
            raise UserError(f"{folder}: the {what} have changed on disk while the study ran; restore them and resume")
    result = {
        **asdict(task.job),
        "configuration": task.spec.row_hashes[task.job.method],
        "sources": dict(task.sources),
        "parameters": task.parameters,
        "seed": task.config["seed_everything"],
        **({} if failed(found) else {"checkpoint": file_hash(folder / CHECKPOINT)}),
        "files": {name: file_hash(folder / name) for name in LOGS if (folder / name).is_file()},
        **found,
    }
    write_json(folder / RESULT, result)
    if task.job.stage != "run" or failed(result):  # a trial is not tested, and hundreds of checkpoints fill a disk
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return result


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
            with explain_write_errors(task.job_folder):
                shutil.rmtree(task.job_folder, ignore_errors=True)  # of an earlier attempt
                task.job_folder.mkdir(parents=True)
        try:
            training = Training(task.config, task.job_folder, _tracked(task), task.folder / TRUNKS).build()
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
    job = task.job
    place = {"study": task.spec.name, "method": job.method, "stage": job.stage, job.stage: job.number, "fold": job.fold}
    return {
        "name": str(job),
        "group": task.spec.name,
        "job_type": job.stage,
        "tags": [job.method, job.stage, f"{job.stage} {job.number}", f"fold {job.fold}"],
        "config": place,
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
        given, answer = Path(folder, "task"), Path(folder, "outcome")
        given.write_bytes(pickle.dumps((task, os.getpid())))
        subprocess.run(
            [sys.executable, "-m", __name__, str(given), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output may be JSON
            env={**environment, "PYTHONSAFEPATH": "1"},  # else a file in the working directory could hide a library
            start_new_session=True,  # `main` may end all of its processes
            check=False,
        )
        outcome = Outcome("memory", "its processes died")
        if answer.exists():
            outcome = Outcome(*json.loads(answer.read_bytes()))
    if outcome.kind != "done":
        kind = {"memory": OutOfMemory, "mistake": UserError}.get(outcome.kind, RuntimeError)
        raise kind(f"{outcome.value}\n{outcome.trace}".strip())
    return outcome.value


def main(given: Path, answer: Path) -> None:
    """One process of a job on several devices: the first, or a failing one, writes the outcome."""
    task, parent = pickle.loads(given.read_bytes())
    end_with_parent(parent if is_first_rank() else os.getppid())
    keep_freed_memory()
    outcome = attempt(_train, task)
    ends = outcome.kind != "done" or failed(outcome.value)
    if ends or is_first_rank():
        write_atomically(answer, json.dumps(outcome).encode())
    if ends:
        os.killpg(0, signal.SIGKILL)  # the others would wait for it


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
