"""What a study is doing and how long is left: a live view on a terminal, plain lines or lines of JSON elsewhere."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from levelfield.metrics.table import SELECTED_BY
from levelfield.study.definition.spec import is_baseline
from levelfield.study.jobs.job import Job, failed
from levelfield.study.jobs.live_view import Doing, StudyView
from levelfield.study.jobs.standing import method_standings
from levelfield.study.jobs.state import StudyState

# A refresh takes some milliseconds of the process that may be training.
REFRESHES_A_SECOND = 2


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_left(
    to_do: Iterable[Job], done: Mapping[Job, float], elapsed: float = 0.0, workers: int = 1
) -> float | None:
    """Expected time of the jobs to do: each as long as its method's mean so far, or else the mean of all.

    Args:
        to_do: Jobs, the running one included.
        done: Seconds of each finished job.
        elapsed: Seconds the running jobs have taken.

    Returns:
        Seconds; None before any training is done, for the baseline's jobs say nothing about one.
    """
    trained = [seconds for job, seconds in done.items() if not is_baseline(job.method)]
    if not trained:
        return None
    overall = sum(trained) / len(trained)
    by_method: dict[str, list[float]] = {}
    for job, seconds in done.items():
        by_method.setdefault(job.method, []).append(seconds)
    means = {method: sum(values) / len(values) for method, values in by_method.items()}
    return max(sum(means.get(job.method, overall) for job in to_do) - elapsed, 0.0) / workers


class StudyProgress:
    """Shows the progress of a study's jobs.

    Args:
        console: Where to show it; a live view if it is a terminal.
        done: Seconds of each job that was finished before.
        workers: How many processes do jobs.
        machine: Where a line of JSON is written for each job and each remark, in place of all that is for people.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        state: StudyState,
        done: Mapping[Job, float],
        workers: int = 1,
        machine: TextIO | None = None,
    ) -> None:
        self.console = console
        self.state = state
        self.done = dict(done)
        self.workers = workers
        self._machine = machine
        self._started = time.monotonic()
        self._view = StudyView(name)
        self._live: Live | None = None
        if console.is_terminal and machine is None:
            self._live = Live(
                self._view, console=console, transient=True, refresh_per_second=REFRESHES_A_SECOND, auto_refresh=True
            )
            self._look()

    def __enter__(self) -> "StudyProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def shows_steps(self) -> bool:
        """Whether the steps of the running job are shown: on a terminal."""
        return self._live is not None

    def start(self, title: str) -> None:
        """A job, or a step of the test stage, begins."""
        self._started = time.monotonic()
        if self._live is not None:
            self._view.doing = [Doing(title)]
            self._view.note = self._note(0.0)

    def advance(self, done: int, total: int) -> None:
        """Steps of the running job; ignored when not on a terminal."""
        if self._live is not None:
            elapsed = time.monotonic() - self._started
            own = f"{duration(elapsed * (total - done) / done)} left" if done else ""
            self._view.doing = [Doing(each.title, done, total, own) for each in self._view.doing]
            if self.done:
                self._view.note = self._note(elapsed)

    def note_finished(self, jobs: Iterable[Job]) -> None:
        """Jobs that were done, here or by another process."""
        for job in jobs:
            result = self.state.results[job]
            self.done[job] = result["seconds"]
            if self._machine is not None:
                self._tell(self._finished(job, result))
                continue
            note = self._note(0.0)
            if failed(result):
                text = f"{job}: failed, {result['failure']}"
            else:
                score = result["validation"].get(SELECTED_BY)  # none where all classes train
                said = "trained for" if score is None else f"validation MAP@R {100 * score:.1f} after"
                text = f"{job}: {said} {duration(result['seconds'])}"
            if self._live is not None:
                self._look()
                self._view.note = note
                style = "red" if failed(result) else None
                self.console.print(text, highlight=False, markup=False, style=style)
            else:
                self.line(f"[{len(self.done)}/{len(self.state.jobs)}] {text}{f'; {note}' if note else ''}")

    def line(self, text: str) -> None:
        if self._machine is not None:
            self._tell({"event": "note", "note": text})
        else:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _finished(self, job: Job, result: dict[str, Any]) -> dict[str, Any]:
        left = seconds_left(self.state.to_do, self.done, 0.0, self.workers)
        return {
            "event": "job",
            **asdict(job),
            "seconds": result["seconds"],
            "parameters": result["parameters"],
            **({"failure": result["failure"]} if failed(result) else {"validation": result["validation"]}),
            "done": len(self.done),
            "jobs": len(self.state.jobs),
            "seconds_left": left,
        }

    def _tell(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=self._machine, flush=True)

    def _look(self) -> None:
        """What the live view shows of the jobs that are done."""
        self._view.methods = method_standings(self.state)
        stages = ("trial", "final", "run")
        self._view.failures = {str(job): why for stage in stages for job, why in self.state.failures(stage).items()}

    def _note(self, elapsed: float) -> str:
        to_do = self.state.to_do
        if not to_do:
            return "testing"
        left = seconds_left(to_do, self.done, elapsed, self.workers)
        return "" if left is None else f"about {duration(left)} left"
