"""What a study is doing and how long is left: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from levelfield.metrics.table import SELECTED_BY
from levelfield.study.definition.spec import is_baseline
from levelfield.study.jobs.job import Job, failed
from levelfield.study.jobs.state import StudyState


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
        console: Where to show it; bars if it is a terminal.
        done: Seconds of each job that was finished before.
        workers: How many processes do jobs.
    """

    def __init__(
        self, console: Console, name: str, state: StudyState, done: Mapping[Job, float], workers: int = 1
    ) -> None:
        self.console = console
        self.state = state
        self.done = dict(done)
        self.workers = workers
        self._started = time.monotonic()
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=console,
                transient=True,
            )
            self._study_bar = self._bars.add_task(name, total=len(state.jobs), completed=len(done), note="")
            self._job_bar = self._bars.add_task("", total=1, visible=False, note="")

    def __enter__(self) -> "StudyProgress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    @property
    def shows_steps(self) -> bool:
        """Whether the steps of the running job are shown: on a terminal."""
        return self._bars is not None

    def start(self, title: str) -> None:
        """A job, or a step of the test stage, begins."""
        self._started = time.monotonic()
        if self._bars is not None:
            self._bars.reset(self._job_bar, total=1, description=title, visible=True, note="")
            self._bars.update(self._study_bar, note=self._note(0.0))

    def advance(self, done: int, total: int) -> None:
        """Steps of the running job; ignored when not on a terminal."""
        if self._bars is not None:
            elapsed = time.monotonic() - self._started
            own = f"{duration(elapsed * (total - done) / done)} left" if done else ""
            self._bars.update(self._job_bar, completed=done, total=total, note=own)
            if self.done:
                self._bars.update(self._study_bar, note=self._note(elapsed))

    def note_finished(self, jobs: Iterable[Job]) -> None:
        """Jobs that were done, here or by another process."""
        for job in jobs:
            result = self.state.results[job]
            self.done[job] = result["seconds"]
            note = self._note(0.0)
            if failed(result):
                text = f"{job}: failed, {result['failure']}"
            else:
                score = result["validation"].get(SELECTED_BY)  # none where all classes train
                said = "trained for" if score is None else f"validation MAP@R {100 * score:.1f} after"
                text = f"{job}: {said} {duration(result['seconds'])}"
            if self._bars is not None:
                self._bars.update(self._study_bar, total=len(self.state.jobs), completed=len(self.done), note=note)
                self._bars.console.print(text, highlight=False, markup=False)
            else:
                self.line(f"[{len(self.done)}/{len(self.state.jobs)}] {text}{f'; {note}' if note else ''}")

    def line(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _note(self, elapsed: float) -> str:
        to_do = self.state.to_do
        if not to_do:
            return "testing"
        left = seconds_left(to_do, self.done, elapsed, self.workers)
        return "" if left is None else f"about {duration(left)} left"
