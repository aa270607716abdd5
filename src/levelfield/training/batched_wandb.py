"""W&B's logger for trainings whose steps take milliseconds."""

import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

# How long what is told may wait for more: to wake W&B's thread and its process costs six times what a row does.
LONGEST_WAIT = 5.0


class BatchedWandbLogger(WandbLogger):
    """Lightning's `WandbLogger`, which sends the numbers of some seconds together, each with the time that it is of.

    Whoever asks for `experiment`, to log by it or to finish it, finds all numbers sent.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._has_prefix = bool(kwargs.get("prefix"))
        self._waiting: list[tuple[dict[str, float], int | None]] = []
        self._since = 0.0

    @property
    def experiment(self) -> Any:
        run = super().experiment
        waiting, self._waiting = self._waiting, []
        for metrics, step in waiting:
            super().log_metrics(metrics, step)
        return run

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        now = time.time()
        self._since = self._since if self._waiting else now
        # W&B's own key of a row, which a prefix would make another
        self._waiting.append(({**metrics, **({} if self._has_prefix else {"_timestamp": now})}, step))
        if now - self._since >= LONGEST_WAIT:
            _ = self.experiment
