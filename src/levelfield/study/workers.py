"""Units of work on slots: choose the next unit, collect outcomes, and handle workers that die or lack memory.

A slot is a pool of exactly one process, so a dead process means exactly one dead unit. One process decides: its
`Scheduler` runs the jobs of a study and its test stage.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from levelfield.core.errors import OutOfMemory, UserError, refused_file

# A unit is tried this many times, the last time with no other; the study ends after this many consecutive deaths.
TRIES, DEATHS_IN_A_ROW = 3, 9
# Errors after which a process gets an error from everything that it does on its GPU.
BREAKS_THE_PROCESS = ("CUDA error", "cuDNN error", "CUBLAS_STATUS", "CUDNN_STATUS")
MORE_MEMORY = "if memory is short, give --executor.workers 1"
# Seconds between two checks that the slots work, and that one has started.
LOOK_SECONDS, START_SECONDS = 5.0, 0.25
# Seconds; a longer garbage collection visits the objects of imported modules.
LONG_COLLECTION_SECONDS = 0.02
Line = Callable[[str], Any]  # prints a message


@dataclass(frozen=True)
class Unit:
    """One piece of work for one process.

    Args:
        row: The row.
        function: A function of a module, so that it can be pickled. It gets `arguments` and a tuple with the reasons
            why earlier attempts ended.
    """

    name: str
    row: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Work(Protocol):
    """The work of a study."""

    def ready(self) -> Iterator[Unit]:
        """Units that can start now, in order, with those that are running."""

    def add(self, unit: Unit, value: Any) -> None:
        """Take the value of a finished unit."""


class Slots(Protocol):
    """The processes that run units.

    Attributes:
        number: Number of parallel units.
        died: The exception of a future when the process of its slot has died.
    """

    number: int
    died: tuple[type[BaseException], ...]

    def ready(self, slot: int) -> bool:
        """Whether a slot can take a unit; starts its process if there is none."""

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function in the process of a slot that is ready."""

    def drop(self, slot: int) -> None:
        """Drop the dead process of a slot."""

    def check(self) -> None:
        """Raise a UserError if no slot can work any more; by default they always can."""
        return

    def stop(self) -> None:
        """End all processes."""


class Outcome(NamedTuple):
    """The outcome of a unit, as text: a user's exception may not be picklable.

    Attributes:
        kind: `done`, `memory`, `mistake` (a UserError), `error` (in the user's code), `broken` (the same, and its
            process can no longer use the GPU) or `died`.
        value: The return value, or a sentence.
    """

    kind: str
    value: Any
    trace: str = ""


class Ended(Exception):  # noqa: N818  # the name says what happened
    """The outcome of the processes that a unit has started itself."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


def attempt(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """Call the function of a unit, in a slot."""
    try:
        return Outcome("done", function(*arguments))
    except OutOfMemory as error:
        return Outcome("memory", str(error))
    except UserError as error:
        return Outcome("mistake", str(error))
    except Ended as ended:
        return ended.outcome
    except (Exception, SystemExit) as error:
        refused = refused_file(error) if isinstance(error, OSError) else None
        if refused is not None:
            return Outcome("mistake", str(refused))
        kind = "broken" if any(each in str(error) for each in BREAKS_THE_PROCESS) else "error"
        return Outcome(kind, in_words(error), traceback.format_exc())
    finally:
        collect_garbage()  # here, after the traceback is freed


def in_words(error: BaseException) -> str:
    """One line for an exception in the user's code."""
    if isinstance(error, SystemExit):
        return "its code calls exit"
    return f"{type(error).__name__}: {error}".splitlines()[0]


class Scheduler:
    """Gives units to slots and collects their outcomes.

    A unit that lacks memory, or whose process dies, is tried again, the third time with no other unit in parallel. Then
    it is given up; after an error in the user's code its row is given up. All others are finished first.

    Args:
        line: Prints a message.
        debug: Whether to show the traceback of a user's code.

    Attributes:
        given_up: Unit to the reason for its failure.
    """

    def __init__(self, work: Work, slots: Slots, line: Line, debug: bool = False) -> None:
        self.work, self.slots, self.line, self.debug = work, slots, line, debug
        self.running: dict[Future, tuple[int, Unit]] = {}
        self.attempts: dict[str, tuple[str, ...]] = {}  # unit to the reasons of its failed attempts
        self.deaths_in_a_row = 0
        self.given_up: dict[str, str] = {}
        self.rows_without: set[str] = set()  # rows whose code raised an error: their units are not tried any more

    def run(self) -> None:
        """Run units until none is left except those that are given up.

        Raises:
            UserError: a mistake, at once, workers that die in any unit, or at the end units that are given up.
        """
        waited = 0.0
        while True:
            free = {*range(self.slots.number)} - {slot for slot, _ in self.running.values()}
            usable = [slot for slot in sorted(free) if self.slots.ready(slot)]
            for slot, unit in zip(usable, self._next(len(usable)), strict=False):
                self._submit(slot, unit)
            some_start = len(usable) < len(free)
            if self.running:
                seconds = START_SECONDS if some_start else LOOK_SECONDS
                waited, done = 0.0, wait(self.running, timeout=seconds, return_when=FIRST_COMPLETED).done
            elif next(self._left(), None) is None:
                break
            else:
                waited, done = waited + START_SECONDS, set()
                time.sleep(START_SECONDS)
                if waited == LOOK_SECONDS:
                    self.line("no worker is ready yet: waiting for one")
            if not done:
                self.slots.check()
            for future in done:
                slot, unit = self.running.pop(future)
                self._take(unit, self._outcome(future, slot, unit))
        if self.given_up:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.given_up.items())
            raise UserError(f"not finished: {reasons}. All other results are kept: fix this and run the command again")

    def _left(self) -> Iterator[Unit]:
        units = (unit for unit in self.work.ready() if unit.name not in self.given_up)
        return (unit for unit in units if unit.row not in self.rows_without)

    def _next(self, most: int) -> list[Unit]:
        """The units to start now: one for each free slot; when no others are left, one unit that must run alone."""
        names = {unit.name for _, unit in self.running.values()}
        alone = {name for name, reasons in self.attempts.items() if len(reasons) == TRIES - 1}
        if names & alone or not most:
            return []
        found = list(islice((unit for unit in self._left() if unit.name not in names | alone), most))
        return found or ([] if self.running else list(islice(self._left(), 1)))

    def _submit(self, slot: int, unit: Unit) -> None:
        words = (attempt, unit.function, *unit.arguments, self.attempts.get(unit.name, ()))
        try:
            future = self.slots.submit(slot, *words)
        except self.slots.died:  # while idle
            self.slots.drop(slot)
            return
        self.running[future] = slot, unit

    def _outcome(self, future: Future, slot: int, unit: Unit) -> Outcome:
        try:
            outcome = future.result()
        except self.slots.died as death:
            self.deaths_in_a_row += 1
            self.slots.drop(slot)
            return Outcome("died", f"its process died ({type(death).__name__})")
        self.deaths_in_a_row = 0
        if outcome.kind == "broken":
            try:
                self.slots.drop(slot)
            except UserError as error:  # this process is the slot
                raise UserError(f"{unit.name}: {outcome.value}; {error}") from None
        return outcome

    def _take(self, unit: Unit, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self.work.add(unit, outcome.value)
            return
        if outcome.kind == "mistake":
            raise UserError(outcome.value)
        reasons = self.attempts[unit.name] = (*self.attempts.get(unit.name, ()), outcome.value)
        if self.deaths_in_a_row == DEATHS_IN_A_ROW:
            last = f"{DEATHS_IN_A_ROW} workers died in a row, the last in {unit.name}"
            raise UserError(f"{last}; {MORE_MEMORY}")
        trace, why, without = outcome.trace if self.debug else "", outcome.value, "it"
        if outcome.kind == "error" or (outcome.kind == "broken" and len(reasons) > 1):
            self.rows_without.add(without := unit.row)
        elif len(reasons) < TRIES:
            alone = " when nothing else runs" if len(reasons) == TRIES - 1 else ""
            self.line(f"{unit.name}: {why}; will be tried again{alone}")
            return
        else:
            why = f"{why}, {TRIES} times; {MORE_MEMORY}"
        self.given_up[unit.name] = why
        self.line(f"{trace}{unit.name}: {why}; the study continues without {without}")


class Here(Slots):
    """This process is the only slot, so breakpoints and notebooks work."""

    number = 1
    died: tuple[type[BaseException], ...] = ()

    def ready(self, slot: int) -> bool:
        return True

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments))
        return future

    def drop(self, slot: int) -> None:
        raise UserError("this process can no longer use its GPU. All results are kept: run the command again")

    def stop(self) -> None:
        gc.unfreeze()


def collect_garbage() -> None:
    """Free a Trainer's objects, which refer to each other; otherwise the process grows by megabytes per job."""
    started = time.perf_counter()
    gc.collect()
    if time.perf_counter() - started > LONG_COLLECTION_SECONDS:
        gc.freeze()  # later collections skip what survives a long one
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
