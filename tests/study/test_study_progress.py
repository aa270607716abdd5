"""The time left, and lines where there is no terminal."""

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from levelfield.study.jobs import Job
from levelfield.study.progress import StudyProgress, duration, seconds_left
from levelfield.study.spec import StudySpec
from levelfield.study.state import StudyState

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


def test_machines_get_a_line_of_json_for_each_job() -> None:
    output, machine = io.StringIO(), io.StringIO()
    state = Standing({})
    with StudyProgress(Console(file=output, force_terminal=True), "toy", state, {}, machine=machine) as progress:
        state.results[SLOW[0]] = {**done(20.0, 0.312), "parameters": {"model.loss.margin": 0.1}}
        state.results[SLOW[1]] = {"seconds": 4.0, "failure": "the loss is nan at step 3", "parameters": {}}
        progress.note_finished([SLOW[0], SLOW[1]])
        progress.line("worker 1 died")
    first, second, note = map(json.loads, machine.getvalue().splitlines())
    assert first == {
        **{"event": "job", "method": "slow", "stage": "run", "number": 0, "fold": 0, "seconds": 20.0},
        **{"parameters": {"model.loss.margin": 0.1}, "validation": {"map_at_r": 0.312}},
        **{"done": 1, "jobs": 5, "seconds_left": 60.0},  # two baselines and a run of the slow method, as long as it
    }
    assert (second["failure"], second["done"]) == ("the loss is nan at step 3", 2)
    assert note == {"event": "note", "note": "worker 1 died"}
    assert output.getvalue() == ""


def result_of(state: StudyState, job: Job, score: float | None) -> dict[str, Any]:
    """What a job of a real study may have ended with."""
    found = {"seconds": 20.0, "parameters": state.parameters(job)}
    return {**found, "failure": "the loss is nan"} if score is None else {**found, "validation": {"map_at_r": score}}


def test_on_a_terminal_methods_are_bars_by_stage_with_the_best_so_far(spec: StudySpec) -> None:
    output = io.StringIO()
    console = Console(file=output, width=120, height=30, force_terminal=True)
    state = StudyState(spec)
    seconds: dict[Job, float] = {}
    with StudyProgress(console, "[/red] toy", state, seconds) as progress:
        for number, score in enumerate([0.3, 0.35, None]):
            for fold in range(2):
                job = Job("contrastive", "trial", number, fold)
                progress.start(str(job))
                progress.advance(5, 10)
                state.results[job] = result_of(state, job, score)
                progress.note_finished([job])
        progress.start("[/bold] job")
        progress.advance(5, 10)
    text = output.getvalue()
    margin = state.results[Job("contrastive", "trial", 1, 0)]["parameters"]["model.loss.init_args.neg_margin"]
    shown = plain(text.rpartition("[/red] toy")[2])  # drawn last
    assert re.search(r"contrastive +\S+ +6/6 2 failed +\S+ +0/4 +35\.0 +neg_margin " + f"{margin:.3g}", shown)
    assert re.search(r"arcface +\S+ +0/6 +\S+ +0/4", shown)
    assert "about 5 min left" in plain(text)  # 20 s each: two baselines, 6 trials and 8 runs are left, 320 s
    assert re.search(r"\[/bold\] job +\S+ +5/10", shown)
    assert "contrastive trial 2 fold 1: failed, the loss is nan" in shown
    assert "\x1b[31m" in text  # red


def plain(text: str) -> str:
    """Without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
