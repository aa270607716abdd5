"""Who has SIGTERM, SIGUSR1 and SIGUSR2, by which a cluster announces the end of a job, and the Ctrl-C of a study.

They end the program at once. The exit code is 75, and the same command goes on: a study by itself, a fit with
`--resume`, at its last whole epoch.
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

# SIGUSR1 is what `#SBATCH --signal` is given here, SIGUSR2 what other scripts give; SIGTERM comes with a preemption.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
LOADER_SECONDS = 10
OTHERS_SECONDS = 5  # of the processes of a run after its first one
AGAIN_SECONDS = 0.1
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command can be given again


class Stopped(SystemExit):
    """A signal ended the work; what is done is kept.

    Attributes:
        remedy: How to go on, in words, where it takes more than the same command.
    """

    remedy = ""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_CODE)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}"


@contextmanager
def handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let `handler` have the signals; they reach the main thread alone, so another one changes nothing.

    A cluster signals loader processes too. They were forked with the handlers: they go on until the training has ended,
    or some seconds at most, so that it fails because of the signal and not because of them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            handler(number, frame)
        elif number == signal.SIGTERM:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever its parent had it do
            signal.alarm(LOADER_SECONDS)

    report = sys.unraisablehook
    timers: list[threading.Timer] = []

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        """What a handler raises while an object is being deleted is lost there: the signal is sent once more, later."""
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

    Of a run's several processes the first stops at once. It may be in a step that waits for the others, so they work on
    for `OTHERS_SECONDS`.

    Attributes:
        number: The signal that came; 0 before one does.

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
    """Whether no launcher has made this process another than the first of its run."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))


def requeue(stop: Stopped) -> str:
    """Put this SLURM job back into the queue, if SLURM announced the end of its time; what came of it, in words.

    After SIGTERM the job is cancelled, or preempted and requeued by SLURM itself: nothing is done.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or stop.number == signal.SIGTERM or not is_first_rank():
        return ""
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # a number alone can mean the whole array
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
    """Python drops a KeyboardInterrupt that strikes within a destructor: what this yields raises it after all.

    Raises:
        KeyboardInterrupt: from the function that is yielded, where Ctrl-C has struck.
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
