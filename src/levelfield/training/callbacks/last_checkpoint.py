"""`last.ckpt`: what a training that was stopped goes on from, to the bytes that it would have had undisturbed."""

import signal
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loops.loop import _Loop

from levelfield.errors import UserError
from levelfield.runtime.signals import Stopped, handling
from levelfield.training.callbacks.validate_first import BEFORE_TRAINING
from levelfield.training.checkpoint import read_checkpoint
from levelfield.training.run_folder import MetricsFile
from levelfield.training.weight_averaging import training_weights

LAST = "last.ckpt"
# Where in an epoch a state can be gone on from.
STEP, VALIDATION, EPOCH_END = "step", "validation", "epoch end"
BATCHES_APART = 8  # of two looks of several processes on GPUs, each of which waits for all work that its GPU was given


class LastCheckpoint(Checkpoint):
    """Writes `last.ckpt` between two steps, in a validation, at an epoch's end, and puts back what Lightning does not.

    While it trains, a signal that ends the job is answered there: the state is written, then `Stopped` is raised, on
    all processes at the same step. It must be the last callback, for it saves the others' state after they have seen
    the epoch, and `first` the first, before they see the next step.

    Args:
        identity: Gives what determines the training, as plain values; a checkpoint of another one is not gone on
            from. Called when a checkpoint is read or written, which a short training never does.
        seconds: Least time between two checkpoints.
        started: When the training began, in `time.monotonic()`.

    Attributes:
        signal: The number of the signal that came while it trained; 0 before one does.
    """

    def __init__(self, folder: Path, identity: Callable[[], dict[str, Any]], seconds: float, started: float) -> None:
        self.path = folder / LAST
        self.first = _BeforeEachStep(self)
        self._identity = identity
        self._seconds = seconds
        self._moment: str | None = None  # set while a checkpoint of ours is written
        self._earlier_seconds = 0.0
        self._started = self._written = started
        self._goes_on: dict[str, Any] | None = None
        self._validated = False  # since the last step
        self._validation_batches = 0  # of the epoch, before this validation
        self.signal = 0
        self._handling = ExitStack()

    @property
    def elapsed(self) -> float:
        """Seconds of training, those before a stop among them."""
        return self._earlier_seconds + time.monotonic() - self._started

    def differences(self) -> list[str] | None:
        """Which parts of what determines a training differ from those of `last.ckpt`; None if there is no whole one."""
        if not _is_whole(self.path):
            return None
        try:
            job = read_checkpoint(self.path).get("job")
        except UserError:
            return None
        if job is None or (job["best"] and not _is_whole(self.path.with_name("best.ckpt"))):
            return None
        here = self._identity()
        return sorted(key for key in here.keys() | job["identity"].keys() if here.get(key) != job["identity"].get(key))

    def can_go_on(self) -> bool:
        """Whether `last.ckpt` is there, whole and of this training, and the best checkpoint of then still whole."""
        return self.differences() == []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._handling.enter_context(handling(self._note))
        if self._goes_on is None:
            return
        if self._goes_on["moment"] == EPOCH_END:
            # Lightning would end the epoch a second time: another count of its steps, and another step of training
            # where the epoch had no validation.
            _Loop.restarting.fset(trainer.fit_loop, False)  # type: ignore[attr-defined] # its own setter may refuse
        elif self._goes_on["batches"] < trainer.num_training_batches:
            # A batch depends on its number alone; those that were trained on are passed over.
            fetcher = trainer.fit_loop._data_fetcher
            assert fetcher is not None
            assert fetcher.iterator is not None
            for _ in range(self._goes_on["batches"]):
                next(fetcher.iterator)
        self._goes_on = None

    def before_step(self, trainer: Trainer, batch_idx: int) -> None:
        """Between two steps; where gradients accumulate, or Lightning would validate again, at the next one."""
        apart = trainer.accumulate_grad_batches * batches_apart(trainer)
        if batch_idx and batch_idx % apart == 0 and not self._validated:
            self._look(trainer, STEP)
        self._validated = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        total = trainer.fit_loop.epoch_loop.val_loop.batch_progress.total
        total.reset_on_restart()  # of the batch that a validation which was stopped had begun
        self._validation_batches = total.completed

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.sanity_checking or trainer.current_epoch == BEFORE_TRAINING:  # nothing is done yet
            return
        if batch_idx % batches_apart(trainer) == 0:
            self._look(trainer, VALIDATION)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = False
        self._look(trainer, EPOCH_END)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._handling.close()
        if self.signal:  # it came after the last epoch: for whoever has the signals now
            signal.raise_signal(self.signal)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._handling.close()

    def _look(self, trainer: Trainer, moment: str) -> None:
        """Write a checkpoint if it is time to, and end here if a signal has come."""
        due = time.monotonic() - self._written >= self._seconds
        number = self.signal
        if trainer.world_size > 1:  # the first process' clock, and anyone's signal
            found = torch.tensor([number, int(due and trainer.is_global_zero)], device=trainer.strategy.root_device)
            number, due = trainer.strategy.reduce(found, reduce_op="max").tolist()
        if not (number or due):
            return
        self._moment = moment
        try:
            with training_weights(trainer) if moment == VALIDATION else nullcontext():
                trainer.save_checkpoint(self.path)
        finally:
            self._moment = None
        self._written = time.monotonic()
        if number:
            raise Stopped(number)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._moment is None:
            return
        loops = checkpoint["loops"]["fit_loop"]
        checkpoint["job"] = {
            "identity": self._identity(),
            "best": self.path.with_name("best.ckpt").exists(),
            "seconds": self.elapsed,
            "should_stop": trainer.should_stop,
            "metrics": _metrics_file(trainer).text,
            "moment": self._moment,
            "batches": loops["epoch_loop.batch_progress"]["current"]["completed"],
        }
        # Lightning's counts stand in the middle of a hook; these are the ones between two.
        if self._moment == EPOCH_END:
            for progress in loops["epoch_progress"].values():
                progress["completed"] = progress["processed"]
        if self._moment == STEP:
            loops["epoch_loop.batch_progress"]["is_last_batch"] = False
            for name in ("total", "current"):
                progress = loops["epoch_loop.batch_progress"][name]
                progress["ready"] = progress["completed"]
        if self._moment == VALIDATION:  # begun, with no batch done: it is done again from its first
            for name, done in (("total", self._validation_batches), ("current", 0)):
                counts = {"ready": done + 1, "started": done + 1, "processed": done, "completed": done}
                loops["epoch_loop.val_loop.batch_progress"][name] = counts

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        job = checkpoint.get("job")
        if job is None:  # another fit's best.ckpt
            return
        self._goes_on = job
        self._earlier_seconds = job["seconds"]
        trainer.should_stop = job["should_stop"]
        _metrics_file(trainer).go_on_from(job["metrics"])

    def _note(self, number: int, frame: Any) -> None:
        self.signal = number


class _BeforeEachStep(Callback):
    def __init__(self, last: LastCheckpoint) -> None:
        self._last = last

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._last.before_step(trainer, batch_idx)


def batches_apart(trainer: Trainer) -> int:
    """How many batches lie between two looks at the clock and for a signal, the same on all processes."""
    on_gpus = trainer.strategy.root_device.type == "cuda"
    return BATCHES_APART if on_gpus and trainer.world_size > 1 else 1


def _metrics_file(trainer: Trainer) -> MetricsFile:
    return next(logger for logger in trainer.loggers if isinstance(logger, MetricsFile))


def _is_whole(path: Path) -> bool:
    """Whether every byte of a checkpoint is as it was written; torch reads its tensors without looking."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # a damaged archive can raise anything
        return False
