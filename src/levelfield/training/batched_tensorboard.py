"""TensorBoard's logger for trainings whose steps take milliseconds."""

import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

# How long what is told may wait for more: each scalar that is written wakes TensorBoard's thread.
LONGEST_WAIT = 5.0


class BatchedTensorBoardLogger(TensorBoardLogger):
    """Lightning's `TensorBoardLogger`, which writes the numbers of some seconds together, each with its time.

    Whoever asks for `experiment`, to log by it or to close it, finds all numbers written.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: list[tuple[float, dict[str, float], int | None]] = []

    @property
    def experiment(self) -> Any:
        from tensorboard.compat.proto.summary_pb2 import Summary

        writer = super().experiment
        waiting, self._waiting = self._waiting, []
        for told, metrics, step in waiting:
            values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
            writer.file_writer.add_summary(Summary(value=values), step, told)
        return writer

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        now = time.time()
        prefix = f"{self._prefix}{self.LOGGER_JOIN_CHAR}" if self._prefix else ""
        self._waiting.append((now, {f"{prefix}{name}": value for name, value in metrics.items()}, step))
        if now - self._waiting[0][0] >= LONGEST_WAIT:
            _ = self.experiment

    def save(self) -> None:
        """Flushes what is written, so not while rows wait: Lightning asks after each of them."""
        if not self._waiting:
            super().save()

    def finalize(self, status: str) -> None:
        if self._waiting:
            _ = self.experiment
        super().finalize(status)
