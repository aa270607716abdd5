"""Ctrl-C and signals during a fit, without Lightning's handling."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from levelfield.core.signals import Stopped


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Lightning's exit after Ctrl-C back into a KeyboardInterrupt.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        Stopped: a signal came, even if it also ended the loader processes.
    """
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except SystemExit as stop:
        if isinstance(stop, Stopped) or not isinstance(stop.__context__, KeyboardInterrupt):
            raise  # the user's code calls exit
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Stopped | KeyboardInterrupt):
            cause = cause.__context__
        raise cause or error from None  # Lightning cannot tear down loaders that a signal has ended
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
