"""What is done next, with which setting and how long it takes, follows from the results alone."""

import io
import json
import random
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from printed import numbers
from rich.console import Console

from levelfield.analysis.selection import selected
from levelfield.storage.atomic import write_json
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job, job_seed, study_jobs
from levelfield.study.progress import Progress, duration, seconds_left
from levelfield.study.spec import SearchSettings, StudySpec
from levelfield.study.state import StudyState
from levelfield.study.suggest import suggest

SPACE = {"model.loss.init_args.margin": {"low": 0.0, "high": 1.0}}


def study(**search: Any) -> StudySpec:
    config = {"model": {"loss": {"class_path": "TripletMarginLoss"}}, "data": {"dataset": "Glyphs"}, "trainer": {}}
    return StudySpec(
        name="toy",
        folds=2,
        runs=2,
        seed=5,
        threads=1,
        methods={"a": config, "b": config, "plain": config},
        search=SearchSettings(**{"trials": 4, **search}),
        spaces={"a": SPACE, "b": SPACE},
    )


def parameters(record: StudyFolder, job: Job) -> dict[str, Any]:
    """What the search gives a job that is ready."""
    known = record.state.parameters(job)
    return suggest(*record.state.suggest_arguments(job)) if known is None else known


def finish(record: StudyFolder, job: Job, score: float | None) -> None:
    result: dict[str, Any] = {
        **asdict(job),
        "configuration": record.spec.row_hashes[job.method],
        "parameters": parameters(record, job),
        "seed": job_seed(record.spec, job),
        "seconds": 1.0,
    }
    if score is None:
        result["failure"] = "the loss is nan at step 3"
    else:
        (record.folder / job.path).mkdir(parents=True, exist_ok=True)
        record.checkpoint(job).touch()
        result |= {"checkpoint": "", "validation": {"map_at_r": score}}
    write_json(record.folder / job.path / RESULT, result)
    record.state.add(job, result)


def finish_all(record: StudyFolder, score: Any) -> list[Job]:
    done = []
    while (job := next(record.state.ready(), None)) is not None:
        finish(record, job, score(job))
        done.append(job)
    return done


def test_trials_come_one_after_the_other_and_runs_after_all_of_them(tmp_path: Path) -> None:
    record = StudyFolder(tmp_path, study())
    state = record.state
    for fold in range(2):
        finish(record, Job("pretrained", "run", 0, fold), 0.1)
    ready = list(state.ready())
    assert {job.number for job in ready if job.stage == "trial"} == {0}, "the next trial waits for both folds"
    assert {job.method for job in ready if job.stage == "run"} == {"plain"}, "without a space nothing is awaited"
    finish(record, Job("a", "trial", 0, 0), 0.2)
    assert Job("a", "trial", 1, 0) not in list(state.ready())
    finish(record, Job("a", "trial", 0, 1), 0.3)
    ready = list(state.ready())
    assert Job("a", "trial", 1, 0) in ready
    assert Job("b", "trial", 1, 0) not in ready
    finish_all(record, lambda job: 0.5)
    assert state.to_do == []
    batch = StudyFolder(tmp_path / "batch", study(batch=2)).state.ready()
    assert {job.number for job in batch if job.stage == "trial"} == {0, 1}


def test_a_suggestion_depends_on_earlier_trials_alone_whoever_asks(tmp_path: Path) -> None:
    spec = study(trials=7)
    record = StudyFolder(tmp_path, spec)
    state = record.state
    finish_all(
        record, lambda job: 0.1 * len(job.method) + parameters(record, job).get("model.loss.init_args.margin", 0)
    )
    again = StudyFolder(tmp_path, spec).state
    trials = again.trials("a")
    assert len(trials) == 7
    for trial in trials:
        asked = suggest(spec.space("a"), trials[: trial.number], trial.number, 5, "a")
        assert asked == trial.parameters == state.parameters(Job("a", "trial", trial.number, 1))
    best = max(trials, key=lambda trial: trial.value or 0)
    assert again.parameters(Job("a", "run", 1, 0)) == best.parameters
    assert selected(record)["a"].trial == best.number
    assert selected(record)["plain"].trial is None


def test_a_failed_trial_is_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    spec = study()
    record = StudyFolder(tmp_path, spec)
    state = record.state
    finish_all(record, lambda job: None if job == Job("a", "trial", 1, 1) else 0.1 + 0.01 * job.number)
    assert [trial.value is None for trial in state.trials("a")] == [False, True, False, False]
    assert state.trials("a")[1].failure == "the loss is nan at step 3"
    assert selected(record)["a"].trial == 3
    assert selected(record)["a"].failures == ["trial 1 fold 1: the loss is nan at step 3"]
    assert len(state.tested_runs()) == 1 + 3 * 2


def test_a_failed_run_and_a_method_without_a_score_are_not_tested_and_the_others_are(tmp_path: Path) -> None:
    failing = StudyFolder(tmp_path / "failing", study(trials=1))
    finish_all(failing, lambda job: None if job == Job("a", "run", 1, 1) else 0.1)
    assert ("a", 0) in failing.state.tested_runs()
    assert ("a", 1) not in failing.state.tested_runs()
    assert list(failing.state.failures("run")) == [Job("a", "run", 1, 1)]
    record = StudyFolder(tmp_path / "whole", study())
    state = record.state
    finish_all(record, lambda job: None if job.method == "b" else 0.1)
    assert state.without_setting() == ["b"]
    assert state.to_do == []
    assert state.tested_runs() == [("pretrained", 0), ("a", 0), ("a", 1), ("plain", 0), ("plain", 1)]


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_the_work_ends_in_the_same_settings(tmp_path: Path, seed: int) -> None:
    spec, draw = study(trials=6), random.Random(seed)

    def score(job: Job, record: StudyFolder) -> float:
        return parameters(record, job).get("model.loss.init_args.margin", 0.5) / (2 + job.fold)

    straight = StudyFolder(tmp_path / "straight", spec)
    finish_all(straight, lambda job: score(job, straight))
    shuffled = StudyFolder(tmp_path / "shuffled", spec)
    while ready := list(shuffled.state.ready()):
        job = draw.choice(ready)
        finish(shuffled, job, score(job, shuffled))
        shuffled = StudyFolder(tmp_path / "shuffled", spec)
    for job in study_jobs(spec):
        assert (tmp_path / "straight" / job.path / "result.json").read_bytes() == (
            tmp_path / "shuffled" / job.path / "result.json"
        ).read_bytes()


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


def end_job(progress: Progress, job: Job, result: dict[str, Any]) -> None:
    progress.state.results[job] = result
    progress.finished(job, result)


def test_without_a_terminal_there_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 11.0, 11.0, 12.0, 30.0, 30.0])
    monkeypatch.setattr("levelfield.study.progress.time.monotonic", lambda: next(clock))
    output = io.StringIO()
    with Progress(Console(file=output, width=40), Standing({BASELINE[0]: done(1.0, 0.1)}), 1) as progress:
        end_job(progress, BASELINE[1], done(1.0, 0.1))
        end_job(progress, SLOW[0], done(20.0, 0.312))
        end_job(progress, SLOW[1], {"seconds": 4.0, "failure": "the loss is nan at step 3"})
        end_job(progress, SLOW[2], done(20.0, 0.3))
    lines = output.getvalue().splitlines()
    assert [numbers(line) for line in lines] == [[3, 5, 0, 0, 31.2, 40], [1, 0, 3], [5, 5, 2, 0, 30]]
    assert all(f"slow run {run} fold 0" in line for run, line in enumerate(lines))


def test_machines_get_a_line_of_json_for_each_job() -> None:
    output, machine = io.StringIO(), io.StringIO()
    with Progress(Console(file=output, force_terminal=True), Standing({}), 1, machine) as progress:
        end_job(progress, SLOW[0], {**done(20.0, 0.312), "parameters": {"model.loss.margin": 0.1}})
        end_job(progress, SLOW[1], {"seconds": 4.0, "failure": "the loss is nan at step 3", "parameters": {}})
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
        end_job(progress, SLOW[0], done(60.0, 0.3))
        progress.line("contrastive run 0: tried again")
    assert "3/5" in output.getvalue()
    assert "2 min" in output.getvalue()
    assert f"toy: {SLOW[1].method}" in output.getvalue()
    assert "contrastive run 0: tried again" in output.getvalue()
