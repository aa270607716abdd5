"""The time left, and lines where there is no terminal."""

import io

import pytest
from rich.console import Console

from levelfield.study.jobs import Job
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


def test_without_a_terminal_each_job_is_one_line() -> None:
    output = io.StringIO()
    jobs = [*BASELINE, *SLOW]
    with StudyProgress(Console(file=output, width=40), "toy", jobs, {BASELINE[0]: 1.0}) as progress:
        progress.finish(BASELINE[1], 1.0, 0.1)
        progress.start(str(SLOW[0]))
        progress.advance(1, 10)
        progress.finish(SLOW[0], 20.0, 0.312)
    assert output.getvalue().splitlines() == [
        "[2/5] pretrained run 0 fold 1: validation MAP@R 10.0 after 1 s",
        "[3/5] slow run 0 fold 0: validation MAP@R 31.2 after 20 s; about 40 s left",
    ]


def test_on_a_terminal_bars_say_what_runs_and_what_is_done() -> None:
    output = io.StringIO()
    console = Console(file=output, width=120, force_terminal=True)
    with StudyProgress(console, "toy", SLOW, {SLOW[0]: 20.0}) as progress:
        progress.start(str(SLOW[1]))
        progress.advance(5, 10)
        progress.finish(SLOW[1], 20.0, 0.312)
    text = output.getvalue()
    assert "slow run 1 fold 0" in text
    assert "5/10" in text
    assert "about 20 s left" in text
