"""Signals by which a cluster announces the end of a job. They end the command at once with exit code 75.

The same command continues: a study by itself, a fit with `--resume`. `scripts/slurm.sh` requeues the job.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# SIGUSR1: our SLURM script; SIGUSR2: other scripts; SIGTERM: a preemption.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: run the same command again


class Stopped(SystemExit):
    """A signal ended the command; finished work is kept."""

    remedy = ""  # how to continue, if it takes more than the same command

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_CODE)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Raise `Stopped` at a signal. Yields the numbers of the signals so far.

    A cluster also signals loader processes, which have inherited the handlers. They ignore SIGUSR1 and SIGUSR2: the
    training ends them.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield received
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            received.append(number)
            signal.signal(signal.SIGCHLD, lambda *_: None)  # torch's raises when a loader process ends
            raise Stopped(number)
        if number == signal.SIGTERM:
            os._exit(EXIT_CODE)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def is_first_rank() -> bool:
    """Whether this is the first process of its run."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
