"""Units of work on slots: choose the next unit, collect outcomes, and try again what lacks memory or a process.

A slot is a pool of exactly one process, so a dead process means exactly one dead unit. One process decides: its
`Scheduler` runs the jobs of a study and its test stage.
"""

import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from levelfield.core.errors import OutOfMemory, UserError, refused_file

TRIES = 3  # of a unit, the last time with no other
START_SECONDS = 0.25  # between two checks that a slot has started
Line = Callable[[str], Any]  # prints a message


@dataclass(frozen=True)
class Unit:
    """One piece of work for one process.

    Args:
        row: The row.
        function: A function of a module, so that it can be pickled. It gets `arguments` and the number of earlier
            attempts.
    """

    name: str
    row: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Slots(Protocol):
    """The processes that run units."""

    number: int  # of parallel units

    def ready(self, slot: int) -> bool:
        """Whether a slot can take a unit; starts its process if there is none."""

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function in the process of a slot that is ready; an exception means that the process has died."""

    def drop(self, slot: int) -> None:
        """End the process of a slot, which has died, or may be unable to use its GPU after an error."""

    def stop(self) -> None:
        """End all processes."""


class Outcome(NamedTuple):
    """The outcome of a unit, as text: a user's exception may not be picklable.

    Attributes:
        kind: `done`, `mistake` (a UserError), `error` (in the user's code), `memory` (too little) or `died`.
        value: The return value, or a sentence.
    """

    kind: str
    value: Any
    trace: str = ""


def attempt(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """Call the function of a unit, in a slot."""
    try:
        return Outcome("done", function(*arguments))
    except OutOfMemory as error:
        return Outcome("memory", str(error))
    except UserError as error:
        return Outcome("mistake", str(error))
    except (Exception, SystemExit) as error:
        refused = refused_file(error) if isinstance(error, OSError) else None
        if refused is not None:
            return Outcome("mistake", str(refused))
        return Outcome("error", in_words(error), traceback.format_exc())
    finally:
        collect_garbage()  # here, after the traceback is freed


def in_words(error: BaseException) -> str:
    """One line for an exception in the user's code."""
    if isinstance(error, SystemExit):
        return "its code calls exit"
    return f"{type(error).__name__}: {error}".splitlines()[0]


@dataclass
class Scheduler:
    """Gives units to slots and collects their outcomes.

    A unit that lacks memory, or whose process dies, is tried again, the third time with no other unit in parallel. Then
    its row is given up, and so it is after an error in the user's code. All others are finished first.

    Args:
        ready: Returns the units that can start now, in order, with those that are running.
        add: Takes a finished unit and its value.
        line: Prints a message.
        debug: Whether to show the traceback of a user's code.

    Attributes:
        given_up: Row to the unit that has failed and the reason.
    """

    ready: Callable[[], Iterable[Unit]]
    add: Callable[[Unit, Any], Any]
    slots: Slots
    line: Line
    debug: bool = False
    running: dict[Future, tuple[int, Unit]] = field(default_factory=dict, init=False)
    attempts: Counter[str] = field(default_factory=Counter, init=False)  # failed ones of each unit
    given_up: dict[str, str] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Run units until none is left except those of rows that are given up.

        Raises:
            UserError: a mistake, at once, or at the end rows that are given up.
        """
        has_waited = False
        while True:
            free = {*range(self.slots.number)} - {slot for slot, _ in self.running.values()}
            usable = [slot for slot in sorted(free) if self.slots.ready(slot)]
            for slot, unit in zip(usable, self._next(len(usable)), strict=False):
                self._submit(slot, unit)
            if self.running:
                seconds = START_SECONDS if len(usable) < len(free) else None
                for future in wait(self.running, seconds, FIRST_COMPLETED).done:
                    self._collect(future)
                has_waited = False
            elif next(self._left(), None) is None:
                break
            else:
                if not has_waited:
                    self.line("waiting for a worker")
                has_waited = True
                time.sleep(START_SECONDS)
        if self.given_up:
            reasons = "; ".join(self.given_up.values())
            raise UserError(f"not finished: {reasons}. All other results are kept: fix this and run the command again")

    def _left(self) -> Iterator[Unit]:
        return (unit for unit in self.ready() if unit.row not in self.given_up)

    def _next(self, most: int) -> list[Unit]:
        """The units to start now: one for each free slot; when no others are left, one unit that must run alone."""
        names = {unit.name for _, unit in self.running.values()}
        alone = {name for name, tried in self.attempts.items() if tried == TRIES - 1}
        if names & alone or not most:
            return []
        found = list(islice((unit for unit in self._left() if unit.name not in names | alone), most))
        return found or ([] if self.running else list(islice(self._left(), 1)))

    def _submit(self, slot: int, unit: Unit) -> None:
        future: Future = Future()
        try:
            future = self.slots.submit(slot, attempt, unit.function, *unit.arguments, self.attempts[unit.name])
        except Exception as death:  # while idle
            future.set_exception(death)
        self.running[future] = slot, unit

    def _collect(self, future: Future) -> None:
        slot, unit = self.running.pop(future)
        try:
            kind, value, trace = future.result()
        except Exception as death:
            kind, value, trace = "died", f"its process died (... {' '.join(str(death).split())[-100:]})", ""
        if kind == "done":
            self.add(unit, value)
            return
        if kind == "mistake":
            raise UserError(value)
        self.attempts[unit.name] += 1
        if kind != "error" and self.attempts[unit.name] < TRIES:
            then = "will be tried again" + " when nothing else runs" * (self.attempts[unit.name] == TRIES - 1)
        else:
            why = "" if kind == "error" else f", {TRIES} times; if memory is short, give --executor.workers 1"
            self.given_up.setdefault(unit.row, f"{unit.name}: {value}{why}")
            then = f"the study continues without {unit.row}"
        self.line(f"{trace if self.debug else ''}{unit.name}: {value}; {then}")
        if kind != "memory":
            self.slots.drop(slot)


class Here(Slots):
    """This process is the only slot, so breakpoints and notebooks work."""

    number = 1

    def ready(self, slot: int) -> bool:
        return True

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments))
        return future

    def drop(self, slot: int) -> None:
        """This process stays."""

    def stop(self) -> None:
        gc.unfreeze()


def collect_garbage() -> None:
    """Free a Trainer's objects, which refer to each other; otherwise the process grows by megabytes per job."""
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()  # later collections skip the objects of imported modules
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
