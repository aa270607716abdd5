"""One training of a study: all of a job but its `result.json`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.errors import OutOfMemory, TrainingFailed
from levelfield.metrics.table import SELECTED_BY
from levelfield.storage.provenance import provenance
from levelfield.study.definition.configuration import Config
from levelfield.study.jobs.job import CHECKPOINT, Job, empty_folder
from levelfield.study.record import StudyRecord
from levelfield.training.build import build
from levelfield.training.callbacks.last_checkpoint import LAST, LastCheckpoint
from levelfield.training.frozen_trunk import TRUNKS
from levelfield.training.interruption import interruptible
from levelfield.training.run_folder import is_first_process
from levelfield.training.trackers import QUIET

# What torch, CUDA's libraries and the system say of exhausted memory.
NO_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")


class _Steps(Callback):
    """Reports the steps done."""

    def __init__(self, progress: Callable[[int, int], Any]) -> None:
        self._progress = progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._in_all = int(trainer.estimated_stepping_batches)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._progress(trainer.global_step, self._in_all)


def train(
    record: StudyRecord,
    job: Job,
    config: Config,
    progress: Callable[[int, int], Any] | None = None,
    checkpoint_seconds: float = 30.0,
) -> dict[str, Any]:
    """Do a job's training, from `last.ckpt` if it was begun before, else from its start in an emptied folder.

    Args:
        config: What `levelfield fit --config` would take to do it.
        progress: Called with (steps done, steps in all) after each step.

    Returns:
        The training's part of `result.json`.

    Raises:
        TrainingFailed: the loss is not finite.
        OutOfMemory: memory is exhausted.
        Stopped: a signal came; `last.ckpt` has the step that it ended.
        UserError: a setting or the data is not usable.
    """
    folder = record.folder / job.path
    started = time.monotonic()
    try:
        with _memory_limits():
            tracked = told_of(record.spec.name, job)
            training = build(config, folder, progress=False, tracked=tracked, trunks=record.folder / TRUNKS)
            identity = partial(training.identity, config, record.spec.own_code.get(job.method, {}))
            last = LastCheckpoint(folder, identity, checkpoint_seconds, started)
            goes_on = last.can_go_on()
            if goes_on:
                for torn in folder.glob(".*.tmp"):
                    torn.unlink(missing_ok=True)
            elif is_first_process():
                empty_folder(folder)
            training.write_config()
            callbacks = training.trainer.callbacks  # type: ignore[attr-defined]
            shown = [] if progress is None else [_Steps(progress)]
            training.trainer.callbacks = [last.first, *callbacks, *shown, last]  # type: ignore[attr-defined]
            with interruptible(training.trainer):
                training.trainer.fit(
                    training.model, datamodule=training.datamodule, ckpt_path=last.path if goes_on else None
                )
    except TrainingFailed:
        for name in (CHECKPOINT, LAST):
            (folder / name).unlink(missing_ok=True)
        raise
    result = {
        "validation": {} if training.kept_last else {SELECTED_BY: training.best_score},
        "best_epoch": training.best_epoch,
        "seconds": last.elapsed,
        "data": training.datamodule.identity(),
        "provenance": provenance(training.trainer, training.model),
    }
    last.path.unlink(missing_ok=True)
    return result


def told_of(study: str, job: Job) -> dict[str, Any]:
    """What W&B is told of a job beside its settings: the study is its group; how it is found among the others."""
    place = {"method": job.method, "stage": job.stage, job.stage: job.number, "fold": job.fold}
    tags = [job.method, job.stage, f"{job.stage} {job.number}", f"fold {job.fold}"]
    told = {"job_type": job.stage, "tags": tags, "config": {"study": study, **place}}
    return {"name": str(job), "group": study, **told, "settings": QUIET}


@contextmanager
def _memory_limits() -> Iterator[None]:
    """Turn exhausted memory into an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if not isinstance(error, MemoryError) and not any(said in text for said in NO_MEMORY):
            raise
        raise OutOfMemory(
            f"out of memory ({text[:160] or type(error).__name__}): lower --data.batch_size or the samples' size, or "
            "give --model.chunk_size (docs/scale.md)"
        ) from error
