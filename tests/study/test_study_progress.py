"""The time left, and lines where there is no terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from levelfield.study.jobs.job import Job
from levelfield.study.jobs.state import StudyState
from levelfield.study.progress import StudyProgress, duration, seconds_left

BASELINE = [Job("pretrained", "run", 0, fold) for fold in range(2)]
SLOW = [Job("slow", "run", run, 0) for run in range(3)]
FAST = [Job("fast", "run", run, 0) for run in range(3)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (3600, "60 min"), (12000, "3 h 20 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_each_job_left_takes_its_methods_mean() -> None:
    assert seconds_left(SLOW, {}) is None
    assert seconds_left(SLOW, dict.fromkeys(BASELINE, 1.0)) is None
    done = {SLOW[0]: 30.0, SLOW[1]: 50.0, FAST[0]: 10.0}
    assert seconds_left([SLOW[2], FAST[1], FAST[2]], done) == 40 + 10 + 10
    assert seconds_left([SLOW[2]], done, elapsed=15.0) == 25
    assert seconds_left([SLOW[2]], done, elapsed=60.0) == 0
    assert seconds_left([Job("new", "run", 0, 0)], done) == 30


def test_workers_share_the_time_left() -> None:
    assert seconds_left(SLOW[1:], {SLOW[0]: 30.0}, elapsed=20.0, workers=2) == 20


class Standing(StudyState):
    """A study of three runs whose results are given."""

    def __init__(self, results: dict[Job, dict[str, Any]]) -> None:
        self.results = results

    @property
    def jobs(self) -> list[Job]:
        return [*BASELINE, *SLOW]

    @property
    def to_do(self) -> list[Job]:
        return [job for job in self.jobs if job not in self.results]


def done(seconds: float, score: float) -> dict[str, Any]:
    return {"seconds": seconds, "validation": {"map_at_r": score}}


def test_without_a_terminal_each_job_is_one_line() -> None:
    output = io.StringIO()
    state = Standing({BASELINE[0]: done(1.0, 0.1)})
    with StudyProgress(Console(file=output, width=40), "toy", state, {BASELINE[0]: 1.0}) as progress:
        state.results[BASELINE[1]] = done(1.0, 0.1)
        progress.note_finished([BASELINE[1]])
        progress.start(str(SLOW[0]))
        progress.advance(1, 10)
        state.results[SLOW[0]] = done(20.0, 0.312)
        progress.note_finished([SLOW[0]])
        state.results[SLOW[1]] = {"seconds": 4.0, "failure": "the loss is nan at step 3"}
        progress.note_finished([SLOW[1]])
    assert output.getvalue().splitlines() == [
        "[2/5] pretrained run 0 fold 1: validation MAP@R 10.0 after 1 s",
        "[3/5] slow run 0 fold 0: validation MAP@R 31.2 after 20 s; about 40 s left",
        "[4/5] slow run 1 fold 0: failed, the loss is nan at step 3; about 12 s left",
    ]


def test_on_a_terminal_bars_say_what_runs_and_what_is_done() -> None:
    output = io.StringIO()
    console = Console(file=output, width=120, force_terminal=True)
    state = Standing({job: done(20.0, 0.3) for job in (*BASELINE, SLOW[0])})
    with StudyProgress(console, "toy", state, {SLOW[0]: 20.0}) as progress:
        progress.start(str(SLOW[1]))
        progress.advance(5, 10)
        state.results[SLOW[1]] = done(20.0, 0.312)
        progress.note_finished([SLOW[1]])
    text = output.getvalue()
    assert "slow run 1 fold 0" in text
    assert "5/10" in text
    assert "about 20 s left" in text


def test_the_bar_shows_a_name_as_it_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with StudyProgress(console, "[/red] study", Standing({}), {}) as progress:
        progress.start("[/bold] job")
    assert "[/red] study" in console.file.getvalue()  # type: ignore[attr-defined]
