"""Handle Ctrl-C and the signals by which a cluster announces the end of a job: SIGTERM, SIGUSR1 and SIGUSR2.

They end the program at once with exit code 75. The same command continues: a study by itself, a fit with `--resume`
after its last complete epoch.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# SIGUSR1: `#SBATCH --signal` in our script; SIGUSR2: in other scripts; SIGTERM: a preemption.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
LOADER_SECONDS = 10
OTHERS_SECONDS = 5  # that the other processes of a run continue after the first stops
AGAIN_SECONDS = 0.1
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: run the same command again


class Stopped(SystemExit):
    """A signal ended the command; finished work is kept.

    Attributes:
        remedy: How to continue, if it takes more than the same command.
    """

    remedy = ""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_CODE)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


@contextmanager
def handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle the signals with `handler`. Only the main thread gets signals, so another thread changes nothing.

    A cluster also signals loader processes, which have inherited the handlers. They continue until the training has
    stopped, or for some seconds, so that the training reports the signal and not a dead loader.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            handler(number, frame)
        elif number == signal.SIGTERM:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever handler it inherited
            signal.alarm(LOADER_SECONDS)

    report = sys.unraisablehook
    timers: list[threading.Timer] = []

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        """Python drops an exception that a handler raises during a deletion: send the signal again, later."""
        if isinstance(unraisable.exc_value, Stopped):
            timers.append(threading.Timer(AGAIN_SECONDS, os.kill, (process, unraisable.exc_value.number)))
            timers[-1].start()
        else:
            report(unraisable)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = report
        for timer in timers:
            timer.cancel()
        for number, earlier in before.items():
            signal.signal(number, earlier)


class StopAtOnce:
    """A handler for work that can be repeated.

    The first process of a run stops at once. It may wait for the others in a step, so they continue for
    `OTHERS_SECONDS`.

    Attributes:
        number: The received signal; 0 before.

    Raises:
        Stopped: from a call.
    """

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        comes_first, self.number = self.number == 0, number
        if is_first_rank() or not comes_first:
            raise Stopped(number)
        again = threading.Timer(OTHERS_SECONDS, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


def is_first_rank() -> bool:
    """Whether this is the first process of its run."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))


def requeue(stop: Stopped) -> str:
    """Requeue this SLURM job if SLURM announced the end of its time; returns a message.

    After SIGTERM nothing is done: the job is cancelled, or SLURM requeues a preempted job itself.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or stop.number == signal.SIGTERM or not is_first_rank():
        return ""
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # the job id alone can mean the whole array
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        ended = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job} could not be requeued: {error}"
    if ended.returncode:
        return f"job {job} could not be requeued: {' '.join(ended.stderr.split()) or f'exit code {ended.returncode}'}"
    return f"job {job} is requeued"


@contextmanager
def keeping_ctrl_c() -> Iterator[Callable[[], None]]:
    """Keep a Ctrl-C that arrives during a destructor, where Python drops it.

    Raises:
        KeyboardInterrupt: from the yielded function, after a Ctrl-C.
    """
    struck = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        struck.set()
        signal.default_int_handler(number, frame)

    def check() -> None:
        if struck.is_set():
            raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
