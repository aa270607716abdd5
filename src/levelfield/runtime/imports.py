"""Importing without a search for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Imports torch and what stands on it in three quarters of the time.

    What an import makes stays. Python would look through it for garbage again and again as it grows.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
