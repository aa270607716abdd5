"""The progress of a study in words."""

from collections import defaultdict
from itertools import chain
from statistics import fmean

from levelfield.metrics.definitions import as_shown, title_of
from levelfield.study.jobs import Job, failed
from levelfield.study.state import StudyState


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_left(state: StudyState, workers: int) -> float | None:
    """Expected time of the remaining trainings: each takes the mean of its row so far, or else that of all.

    Returns:
        Seconds; None before the first training is finished.
    """
    by_row: dict[str, list[float]] = defaultdict(list)
    for job, result in state.results.items():
        if state.spec.trains(job.method):
            by_row[job.method].append(result["seconds"])
    if not by_row:
        return None
    means, usual = {row: fmean(found) for row, found in by_row.items()}, fmean(chain(*by_row.values()))
    return sum(means.get(job.method, usual) for job in state.to_do if state.spec.trains(job.method)) / workers


def progress_line(state: StudyState, job: Job, workers: int) -> str:
    """The line of a finished job, with the number of finished jobs and the time that is left.

    Args:
        workers: Number of parallel jobs.
    """
    to_do, done, result = state.to_do, len(state.results), state.results[job]
    if failed(result):
        found = f": failed, {result['failure']}"
    else:  # one score, or none without validation
        scores = result["validation"].items()
        found = "".join(f": validation {title_of(name)} {as_shown(name, score)}" for name, score in scores)
    left = seconds_left(state, workers)
    rest = "; testing" if not to_do else "" if left is None else f"; about {duration(left)} left"
    return f"[{done}/{done + len(to_do)}] {job}{found}{rest}"
