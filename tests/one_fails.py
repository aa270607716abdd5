"""A callback that fails on one process alone."""

import builtins
import time
from typing import Any

from lightning.pytorch import Callback, Trainer

WAIT_SECONDS = 90


class OneFails(Callback):
    """Raises on one process at the first batch; the others wait there, as NCCL has them wait at a message.

    gloo, which these tests have, would learn at once that a process has ended.

    Args:
        rank: The process that fails.
        error: What it raises, a builtin exception.
    """

    def __init__(self, rank: int, error: str) -> None:
        self.rank, self.error = rank, error

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_rank == self.rank:
            raise getattr(builtins, self.error)(f"process {self.rank} fails")
        time.sleep(WAIT_SECONDS)

    on_validation_batch_start = on_train_batch_start
