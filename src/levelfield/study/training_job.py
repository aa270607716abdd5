"""One training of a study: all of a job but its `result.json`."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.study.configuration import Config
from levelfield.study.jobs import Job, empty_folder
from levelfield.study.provenance import provenance
from levelfield.study.spec import StudySpec


class _Steps(Callback):
    """Reports the steps done."""

    def __init__(self, progress: Callable[[int, int], Any]) -> None:
        self._progress = progress

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._progress(trainer.global_step, int(trainer.estimated_stepping_batches))


@contextmanager
def _interruptible(trainer: Trainer) -> Iterator[None]:
    """Turn the exit by which Lightning answers Ctrl-C back into a KeyboardInterrupt."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except SystemExit:
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from None
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)


def train(
    study_folder: Path,
    spec: StudySpec,
    job: Job,
    config: Config,
    progress: Callable[[int, int], Any],
    checkpoint_seconds: float = 30.0,
) -> dict[str, Any]:
    """Do a job's training.

    Args:
        study_folder: The study's folder.
        spec: The study.
        job: Which training.
        config: What `levelfield fit --config` would take to do it.
        progress: Called with (steps done, steps in all).
        checkpoint_seconds: How often, at an epoch's end, `last.ckpt` is written.

    Returns:
        The training's part of `result.json`.

    Raises:
        TrainingFailed: the loss is not finite, or memory is exhausted.
        UserError: a setting or the data is not usable.
    """
    from levelfield.training import build

    folder = study_folder / job.path
    empty_folder(folder)
    started = time.monotonic()
    training = build(config, folder, progress=False, group=spec.name, name=str(job))
    training.trainer.callbacks.append(_Steps(progress))  # type: ignore[attr-defined]
    with _interruptible(training.trainer):
        training.trainer.fit(training.model, datamodule=training.datamodule)
    return {
        "validation": {"map_at_r": training.best_score},
        "best_epoch": training.best_epoch,
        "seconds": time.monotonic() - started,
        "data": training.datamodule.identity(),
        "provenance": provenance(training.trainer),
    }
