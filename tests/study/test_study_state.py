"""What is done next, with which setting and how long it takes, follows from the results alone."""

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from levelfield.core.files import write_json
from levelfield.report.facts import selected
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import RESULT, Job, job_seed, study_jobs
from levelfield.study.progress import seconds_left
from levelfield.study.spec import SearchSettings, StudySpec
from levelfield.study.state import setting
from levelfield.study.suggest import suggest

SPACE = {"model.loss.init_args.margin": {"low": 0.0, "high": 1.0}}


def study(**search: Any) -> StudySpec:
    config = {"model": {"loss": {"class_path": "TripletMarginLoss"}}, "data": {"dataset": "Glyphs"}, "trainer": {}}
    counts = {"folds": 2, "runs": 2, "seed": 5, "threads": 1, "search": SearchSettings(**{"trials": 4, **search})}
    methods = {"a": config, "b": config, "plain": config}
    return StudySpec(name="toy", methods=methods, spaces={"a": SPACE, "b": SPACE}, **counts)


def parameters(record: StudyFolder, job: Job) -> dict[str, Any]:
    """What the search gives a job that is ready."""
    known = record.state.parameters(job)
    return setting(record.spec, job, record.state.trials_before(job)) if known is None else known


def finish(record: StudyFolder, job: Job, score: float | None) -> None:
    result = asdict(job) | {"configuration": record.spec.row_hashes[job.method], "seconds": 1.0}
    result |= {"parameters": parameters(record, job), "seed": job_seed(record.spec, job)}
    if score is None:
        result["failure"] = "the loss is nan at step 3"
    else:
        (record.folder / job.path).mkdir(parents=True, exist_ok=True)
        record.checkpoint(job).touch()
        result |= {"checkpoint": "", "validation": {"map_at_r": score}}
    write_json(record.folder / job.path / RESULT, result)
    record.state.add(job, result)


def finish_all(record: StudyFolder, score: Any) -> None:
    while (job := next(record.state.ready(), None)) is not None:
        finish(record, job, score(job))


def test_trials_come_one_after_the_other_and_runs_after_all_of_them(tmp_path: Path) -> None:
    record = StudyFolder(tmp_path, study())
    state = record.state
    for fold in range(2):
        finish(record, Job("pretrained", "run", 0, fold), 0.1)
    ready = list(state.ready())
    assert {job.number for job in ready if job.stage == "trial"} == {0}, "the next trial waits for both folds"
    assert {job.method for job in ready if job.stage == "run"} == {"plain"}, "without a space nothing is awaited"
    for fold in range(2):
        assert Job("a", "trial", 1, 0) not in list(state.ready())
        finish(record, Job("a", "trial", 0, fold), 0.2)
    assert {job.method for job in state.ready() if job.number == 1 and job.stage == "trial"} == {"a"}
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
    def finished(fails: Callable[[Job], bool], **changes: Any) -> StudyFolder:
        record = StudyFolder(tmp_path / str(len(list(tmp_path.iterdir()))), replace(study(), **changes))
        finish_all(record, lambda job: None if fails(job) else 0.1 + 0.01 * job.number)
        return record

    trial = finished(lambda job: job == Job("a", "trial", 1, 1))
    assert [each.value is None for each in trial.state.trials("a")] == [False, True, False, False]
    best, failures = selected(trial)["a"]
    assert (best.number, len(failures)) == (3, 1)
    assert "trial 1 fold 1" in failures[0]
    assert len(trial.state.tested_runs()) == 1 + 3 * 2
    failing = finished(lambda job: job == Job("a", "run", 1, 1)).state
    assert {("a", 0), ("a", 1)} & {*failing.tested_runs()} == {("a", 0)}
    assert list(failing.failures("run")) == [Job("a", "run", 1, 1)]
    methods, derived = study().methods | {"of_b": study().methods["b"]}, {"of_b": {"of": "b", "pca": 2}}
    state = finished(lambda job: job.method == "b", methods=methods, derived=derived).state
    assert (state.without_setting(), state.to_do) == (["b", "of_b"], [])
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


def test_each_job_left_takes_its_methods_mean() -> None:
    slow, fast = ([Job(name, "run", run, 0) for run in range(3)] for name in ("slow", "fast"))
    spec = SimpleNamespace(trains=lambda row: row not in ("pretrained", "averaged"))

    def left(to_do: list[Job], done: dict[Job, float], workers: int = 1) -> float | None:
        results = {job: {"seconds": seconds} for job, seconds in done.items()}
        return seconds_left(SimpleNamespace(spec=spec, to_do=to_do, results=results), workers)  # type: ignore[arg-type]

    assert left(slow, {}) is None
    assert left(slow, {Job("pretrained", "run", 0, 0): 1.0}) is None
    done = {slow[0]: 30.0, slow[1]: 50.0, fast[0]: 10.0}
    assert left([slow[2], fast[1], fast[2]], done) == 40 + 10 + 10
    assert left([Job("new", "run", 0, 0)], done) == 30
    assert left(slow[1:], {slow[0]: 30.0}, workers=2) == 30
    assert left([slow[1], Job("averaged", "run", 0, 0)], {slow[0]: 600.0}) == 600, "a derived row trains nothing"
