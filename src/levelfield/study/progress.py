"""The progress of a study in words."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from levelfield.metrics.definitions import as_shown, title_of
from levelfield.study.jobs import Job, failed
from levelfield.study.spec import is_baseline
from levelfield.study.state import StudyState


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_left(
    to_do: Iterable[Job], done: Mapping[Job, float], workers: int = 1, derived: Iterable[str] = ()
) -> float | None:
    """Expected time of the remaining jobs: each takes the mean of its row so far, or else that of all trainings.

    Args:
        derived: Rows that are made from trained ones; one takes no time before its first job is finished.

    Returns:
        Seconds; None before the first training is finished.
    """
    by_row: dict[str, list[float]] = defaultdict(list)
    for job, seconds in done.items():
        by_row[job.method].append(seconds)
    trained = [each for row, found in by_row.items() for each in found if not (is_baseline(row) or row in derived)]
    if not trained:
        return None
    means = {**dict.fromkeys(derived, 0.0), **{row: fmean(found) for row, found in by_row.items()}}
    return sum(means.get(job.method, fmean(trained)) for job in to_do) / workers


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
    seconds = {job: each["seconds"] for job, each in state.results.items()}
    left = seconds_left(to_do, seconds, workers, state.spec.derived)
    rest = "; testing" if not to_do else "" if left is None else f"; about {duration(left)} left"
    return f"[{done}/{done + len(to_do)}] {job}{found}{rest}"
