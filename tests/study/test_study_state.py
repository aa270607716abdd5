"""What is done next, with which setting and how long it takes, follows from the results alone."""

import random
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from levelfield.core.files import write_json
from levelfield.report.facts import selected
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job, job_seed, study_jobs
from levelfield.study.progress import progress_line, seconds_left
from levelfield.study.spec import SearchSettings, StudySpec
from levelfield.study.state import setting
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
    return setting(record.spec, job, record.state.trials_before(job)) if known is None else known


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
    finish_all(record, lambda job: 0.1 + parameters(record, job).get("model.loss.init_args.margin", 0))
    again = StudyFolder(tmp_path, spec).state
    trials = again.trials("a")
    assert len(trials) == 7
    for trial in trials:
        asked = suggest(spec.space("a"), trials[: trial.number], trial.number, 5, "a")
        assert asked == trial.parameters == record.state.parameters(Job("a", "trial", trial.number, 1))
    best = max(trials, key=lambda trial: trial.value or 0)
    assert again.parameters(Job("a", "run", 1, 0)) == best.parameters
    assert selected(record)["a"][0] == best
    assert selected(record)["plain"] == (None, [])


def test_failures_are_recorded_and_what_has_not_failed_is_searched_and_tested(tmp_path: Path) -> None:
    trial = StudyFolder(tmp_path / "trial", study())
    finish_all(trial, lambda job: None if job == Job("a", "trial", 1, 1) else 0.1 + 0.01 * job.number)
    assert [each.value is None for each in trial.state.trials("a")] == [False, True, False, False]
    assert selected(trial)["a"][0].number == 3
    assert selected(trial)["a"][1] == ["trial 1 fold 1: the loss is nan at step 3"]
    assert len(trial.state.tested_runs()) == 1 + 3 * 2
    failing = StudyFolder(tmp_path / "failing", study(trials=1))
    finish_all(failing, lambda job: None if job == Job("a", "run", 1, 1) else 0.1)
    assert ("a", 0) in failing.state.tested_runs()
    assert ("a", 1) not in failing.state.tested_runs()
    assert list(failing.state.failures("run")) == [Job("a", "run", 1, 1)]
    methods = {**study().methods, "of_b": study().methods["b"]}
    record = StudyFolder(tmp_path / "whole", replace(study(), methods=methods, derived={"of_b": {"of": "b", "pca": 2}}))
    state = record.state
    finish_all(record, lambda job: None if job.method == "b" else 0.1)
    assert state.without_setting() == ["b", "of_b"]
    assert state.to_do == []
    assert state.tested_runs() == [("pretrained", 0), ("a", 0), ("a", 1), ("plain", 0), ("plain", 1)]


def test_any_order_of_the_work_ends_in_the_same_settings(tmp_path: Path) -> None:
    spec, draw = study(trials=6), random.Random(0)

    def score(job: Job, record: StudyFolder) -> float:
        return parameters(record, job).get("model.loss.init_args.margin", 0.5) / (2 + job.fold)

    straight = StudyFolder(tmp_path / "straight", spec)
    finish_all(straight, lambda job: score(job, straight))
    shuffled = StudyFolder(tmp_path / "shuffled", spec)
    while ready := list(shuffled.state.ready()):
        job = draw.choice(ready)
        finish(shuffled, job, score(job, shuffled))
        shuffled = StudyFolder(tmp_path / "shuffled", spec)
    for file in (job.path / RESULT for job in study_jobs(spec)):
        assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "shuffled" / file).read_bytes()


BASELINE = [Job("pretrained", "run", 0, fold) for fold in range(2)]
SLOW = [Job("slow", "run", run, 0) for run in range(3)]
FAST = [Job("fast", "run", run, 0) for run in range(3)]


def test_each_job_left_takes_its_methods_mean() -> None:
    def left(to_do: list[Job], done: dict[Job, float], workers: int = 1) -> float | None:
        spec = SimpleNamespace(trains=lambda row: row not in ("pretrained", "averaged"))
        results = {job: {"seconds": seconds} for job, seconds in done.items()}
        return seconds_left(SimpleNamespace(spec=spec, to_do=to_do, results=results), workers)  # type: ignore[arg-type]

    assert left(SLOW, {}) is None
    assert left(SLOW, dict.fromkeys(BASELINE, 1.0)) is None
    done = {SLOW[0]: 30.0, SLOW[1]: 50.0, FAST[0]: 10.0}
    assert left([SLOW[2], FAST[1], FAST[2]], done) == 40 + 10 + 10
    assert left([Job("new", "run", 0, 0)], done) == 30
    assert left(SLOW[1:], {SLOW[0]: 30.0}, workers=2) == 30
    assert left([SLOW[1], Job("averaged", "run", 0, 0)], {SLOW[0]: 600.0}) == 600, "a derived row trains nothing"


def test_a_finished_job_is_a_line(tmp_path: Path) -> None:
    spec = replace(study(), methods={"slow": study().methods["plain"]}, spaces={})
    state = StudyFolder(tmp_path, spec).state
    lines = []
    scored = {"seconds": 20.0, "parameters": {}, "validation": {"map_at_r": 0.312}}
    failed = {"seconds": 4.0, "parameters": {}, "failure": "the loss is nan at step 3"}
    for job, result in zip(state.jobs[3:5], (scored, failed), strict=True):
        state.add(job, result)
        lines.append(progress_line(state, job, 1))
    # Of the six, three trainings are left, each as long as the mean of those before.
    assert lines == [
        "[1/6] slow run 0 fold 1: validation MAP@R 31.2; about 60 s left",
        "[2/6] slow run 1 fold 0: failed, the loss is nan at step 3; about 24 s left",
    ]
