"""The time left, and lines where there is no terminal."""

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from printed import numbers
from rich.console import Console

from levelfield.study.jobs import Job
from levelfield.study.progress import Progress, duration, seconds_left
from levelfield.study.state import StudyState

BASELINE = [Job("pretrained", "run", 0, fold) for fold in range(2)]
SLOW = [Job("slow", "run", run, 0) for run in range(3)]
FAST = [Job("fast", "run", run, 0) for run in range(3)]


def test_durations_read_well() -> None:
    written = {0.4: "0 s", 89: "89 s", 120: "2 min", 3600: "60 min", 12000: "3 h 20 min"}
    assert {seconds: duration(seconds) for seconds in written} == written


def test_each_job_left_takes_its_methods_mean() -> None:
    assert seconds_left(SLOW, {}) is None
    assert seconds_left(SLOW, dict.fromkeys(BASELINE, 1.0)) is None
    done = {SLOW[0]: 30.0, SLOW[1]: 50.0, FAST[0]: 10.0}
    assert seconds_left([SLOW[2], FAST[1], FAST[2]], done) == 40 + 10 + 10
    assert seconds_left([Job("new", "run", 0, 0)], done) == 30
    assert seconds_left(SLOW[1:], {SLOW[0]: 30.0}, workers=2) == 30


def test_a_row_made_of_a_trained_one_takes_no_time_until_the_first_is_finished():
    derived = [Job(name, "run", 0, 0) for name in ("averaged", "small")]
    to_do, done = [*SLOW[1:2], *derived], {SLOW[0]: 600.0}
    rows = {job.method for job in derived}
    assert seconds_left(to_do, done, derived=rows) == 600
    assert seconds_left([*SLOW[1:2], derived[1]], {**done, derived[0]: 20.0}, derived=rows) == 620


class Standing(StudyState):
    """A study of three runs whose results are given."""

    def __init__(self, results: dict[Job, dict[str, Any]]) -> None:
        self.results = results
        self.spec = SimpleNamespace(name="toy", derived={})  # type: ignore[assignment]

    @property
    def jobs(self) -> list[Job]:  # type: ignore[override]
        return [*BASELINE, *SLOW]

    @property
    def to_do(self) -> list[Job]:
        return [job for job in self.jobs if job not in self.results]


def done(seconds: float, score: float) -> dict[str, Any]:
    return {"seconds": seconds, "validation": {"map_at_r": score}}


def finish(progress: Progress, job: Job, result: dict[str, Any]) -> None:
    progress.state.results[job] = result
    progress.finished(job, result)


def test_without_a_terminal_there_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 11.0, 11.0, 12.0, 30.0, 30.0])
    monkeypatch.setattr("levelfield.study.progress.time.monotonic", lambda: next(clock))
    output = io.StringIO()
    with Progress(Console(file=output, width=40), Standing({BASELINE[0]: done(1.0, 0.1)}), 1) as progress:
        finish(progress, BASELINE[1], done(1.0, 0.1))
        finish(progress, SLOW[0], done(20.0, 0.312))
        finish(progress, SLOW[1], {"seconds": 4.0, "failure": "the loss is nan at step 3"})
        finish(progress, SLOW[2], done(20.0, 0.3))
    lines = output.getvalue().splitlines()
    assert [numbers(line) for line in lines] == [[3, 5, 0, 0, 31.2, 40], [1, 0, 3], [5, 5, 2, 0, 30]]
    assert all(f"slow run {run} fold 0" in line for run, line in enumerate(lines))


def test_machines_get_a_line_of_json_for_each_job() -> None:
    output, machine = io.StringIO(), io.StringIO()
    with Progress(Console(file=output, force_terminal=True), Standing({}), 1, machine) as progress:
        finish(progress, SLOW[0], {**done(20.0, 0.312), "parameters": {"model.loss.margin": 0.1}})
        finish(progress, SLOW[1], {"seconds": 4.0, "failure": "the loss is nan at step 3", "parameters": {}})
        progress.line("worker 1 died")
    first, second, note = map(json.loads, machine.getvalue().splitlines())
    assert first == {
        **{"event": "job", "method": "slow", "stage": "run", "number": 0, "fold": 0, "seconds": 20.0},
        **{"parameters": {"model.loss.margin": 0.1}, "validation": {"map_at_r": 0.312}},
        **{"done": 1, "jobs": 5, "seconds_left": 80.0},  # two untrained rows and two runs, each as long as it
    }
    assert (second["failure"], second["done"]) == ("the loss is nan at step 3", 2)
    assert note == {"event": "note", "note": "worker 1 died"}
    assert output.getvalue() == ""


def test_a_terminal_has_a_bar_with_the_time_left() -> None:
    output = io.StringIO()
    console = Console(file=output, width=120, force_terminal=True)
    with Progress(console, Standing({job: done(1.0, 0.1) for job in BASELINE}), 1) as progress:
        finish(progress, SLOW[0], done(60.0, 0.3))
        progress.line("contrastive run 0: tried again")
    assert "3/5" in output.getvalue()
    assert "2 min" in output.getvalue()
    assert f"toy: {SLOW[1].method}" in output.getvalue()
    assert "contrastive run 0: tried again" in output.getvalue()
