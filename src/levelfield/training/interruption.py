"""Ctrl-C and signals during a fit, past what Lightning and the loader processes make of them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch import Trainer

from levelfield.runtime.signals import Stopped
from levelfield.training.callbacks.last_checkpoint import LastCheckpoint


@contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """Turn the exit by which Lightning answers Ctrl-C back into a KeyboardInterrupt.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        Stopped: a signal came, and it or the same to a loader process kept the step from its end.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except SystemExit as stop:
        if isinstance(stop, Stopped) or not isinstance(stop.__context__, KeyboardInterrupt):
            raise  # a user's code calls exit
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if isinstance(error.__context__, Stopped | KeyboardInterrupt):
            raise error.__context__ from None  # Lightning cannot tear down loaders that a signal kept from starting
        stopped = next((one.signal for one in trainer.callbacks if isinstance(one, LastCheckpoint)), 0)  # type: ignore[attr-defined]
        if not stopped or "DataLoader worker" not in str(error):
            raise
        raise Stopped(stopped) from error
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
