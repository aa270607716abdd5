"""A callback that sends its own process a signal."""

import signal
from typing import Any

from lightning.pytorch import Callback, Trainer


class SignalAt(Callback):
    """Sends this process a signal once, at the end of a step or in the validation after it.

    Args:
        step: The number of steps done.
        in_validation: Whether it waits for the validation.
        number: The signal's.
    """

    sent = False

    def __init__(self, step: int, in_validation: bool = False, number: int = signal.SIGTERM) -> None:
        self.step, self.in_validation, self.number = step, in_validation, number

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._send(trainer, False)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._send(trainer, True)

    def _send(self, trainer: Trainer, in_validation: bool) -> None:
        if not SignalAt.sent and trainer.global_step == self.step and in_validation == self.in_validation:
            SignalAt.sent = True
            signal.raise_signal(self.number)
