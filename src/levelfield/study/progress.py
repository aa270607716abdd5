"""Progress of a study: a bar on a terminal, else a line every ten seconds or lines of JSON."""

import json
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from levelfield.core.terminal import printable, say
from levelfield.metrics.definitions import as_shown, title_of
from levelfield.study.jobs import Job, failed
from levelfield.study.spec import is_baseline
from levelfield.study.state import StudyState

# Seconds between two lines without a terminal.
SECONDS_A_LINE = 10.0


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_left(
    to_do: Iterable[Job], done: Mapping[Job, float], workers: int = 1, derived: Container[str] = ()
) -> float | None:
    """Expected time of the remaining jobs: each takes the mean of its row so far, or else the mean of all its kind.

    Args:
        derived: Rows that are made from trained ones; they take no time before the first is finished.

    Returns:
        Seconds; None before the first training is finished.
    """
    kinds: dict[bool, list[float]] = {False: [], True: []}
    for job, seconds in done.items():
        if not is_baseline(job.method):
            kinds[job.method in derived].append(seconds)
    if not kinds[False]:
        return None
    by_row: dict[str, list[float]] = {}
    for job, seconds in done.items():
        by_row.setdefault(job.method, []).append(seconds)
    means = {row: fmean(values) for row, values in by_row.items()}
    of_kind = {kind: fmean(values or [0.0]) for kind, values in kinds.items()}
    return sum(means.get(job.method, of_kind[job.method in derived]) for job in to_do) / workers


class Progress:
    """Shows the progress of a study's jobs.

    Args:
        console: The terminal.
        state: The state of the study; add a job to it before you call `finished`.
        workers: Number of parallel jobs.
        machine: Gets a line of JSON for each job and each message, instead of the terminal.
    """

    def __init__(self, console: Console, state: StudyState, workers: int, machine: TextIO | None = None) -> None:
        self.console, self.state, self.workers, self._machine = console, state, workers, machine
        self._seconds = {job: result["seconds"] for job, result in state.results.items()}
        self._last_line = time.monotonic()
        self._bar: Bar | None = None
        if console.is_terminal and machine is None:
            left = TextColumn("{task.fields[left]}")
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left)
            self._bar = Bar(*columns, console=console, transient=True, refresh_per_second=2)
            self._task = self._bar.add_task(self._row(), total=len(state.jobs), completed=self._done(), left="")

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def finished(self, job: Job, result: dict[str, Any]) -> None:
        """Report a finished job."""
        self._seconds[job] = result["seconds"]
        to_do = self.state.to_do
        left = seconds_left(to_do, self._seconds, self.workers, self.state.spec.derived) if to_do else 0.0
        in_words = "" if left is None else f"about {duration(left)} left" if to_do else "testing"
        if self._machine is not None:
            counts = {"done": self._done(), "jobs": self._done() + len(to_do), "seconds_left": left if to_do else None}
            self._write({"event": "job", **asdict(job), **_numbers(result), **counts})
        elif self._bar is not None:
            total = self._done() + len(to_do)
            self._bar.update(self._task, description=self._row(), completed=self._done(), total=total, left=in_words)
        elif time.monotonic() - self._last_line >= SECONDS_A_LINE or not to_do:
            self._last_line = time.monotonic()
            rest = f"; {in_words}" if in_words else ""
            self.line(f"[{self._done()}/{self._done() + len(to_do)}] {job}{_score(result)}{rest}")
            return
        if failed(result) and self._machine is None:
            self.line(f"{job}: failed, {result['failure']}")

    def testing(self, done: int, runs: int) -> None:
        """Report the number of runs that are scored on the test classes."""
        if self._bar is not None:
            self._bar.update(self._task, description="test", completed=done, total=runs, left="")

    def line(self, text: str) -> None:
        """Print a message."""
        if self._machine is not None:
            self._write({"event": "note", "note": text})
        else:
            say(text, console=self.console)

    def _row(self) -> str:
        """The study and its first row that is not finished."""
        return f"{printable(self.state.spec.name)}{''.join(f': {job.method}' for job in self.state.to_do[:1])}"

    def _done(self) -> int:
        return len(self.state.results)

    def _write(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=self._machine, flush=True)


def _numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a job for a line of JSON."""
    what = "failure" if failed(result) else "validation"
    return {"seconds": result["seconds"], "parameters": result["parameters"], what: result[what]}


def _score(result: Mapping[str, Any]) -> str:
    if failed(result):
        return f": failed, {result['failure']}"
    scores = result["validation"].items()  # one, or none without validation
    return "".join(f": validation {title_of(metric)} {as_shown(metric, score)}" for metric, score in scores)
