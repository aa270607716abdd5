"""What is done next, and with which setting, follows from the results alone."""

from pathlib import Path
from typing import Any

import pytest

from levelfield.analysis.results import collect_rows
from levelfield.analysis.selection import selected
from levelfield.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_seed, study_jobs
from levelfield.study.spec import SearchSettings, StudySpec, search_settings
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


def finish(record: StudyFolder, job: Job, score: float | None) -> None:
    found: dict[str, Any] = {"seconds": 1.0}
    if score is None:
        found["failure"] = "the loss is nan at step 3"
    else:
        (record.folder / job.path).mkdir(parents=True, exist_ok=True)
        (record.folder / job.checkpoint).touch()
        found["validation"] = {"map_at_r": score}
    record.state.results[job] = record.finish_job(job, record.state.parameters(job), found)


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


def test_trials_of_a_batch_are_ready_together(tmp_path: Path) -> None:
    assert {job.number for job in StudyFolder(tmp_path, study(batch=2)).state.ready() if job.stage == "trial"} == {0, 1}


def test_a_suggestion_depends_on_earlier_trials_alone_whoever_asks(tmp_path: Path) -> None:
    spec = study(trials=7)
    record = StudyFolder(tmp_path, spec)
    state = record.state
    finish_all(record, lambda job: 0.1 * len(job.method) + state.parameters(job).get("model.loss.init_args.margin", 0))
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


def test_a_method_without_a_score_has_no_runs_and_the_others_have(tmp_path: Path) -> None:
    record = StudyFolder(tmp_path, study())
    state = record.state
    finish_all(record, lambda job: None if job.method == "b" else 0.1)
    assert state.without_setting() == ["b"]
    assert state.to_do == []
    assert state.tested_runs() == [("pretrained", 0), ("a", 0), ("plain", 0), ("a", 1), ("plain", 1)]


def test_a_failed_run_is_not_tested(tmp_path: Path) -> None:
    record = StudyFolder(tmp_path, study(trials=1))
    state = record.state
    finish_all(record, lambda job: None if job == Job("a", "run", 1, 1) else 0.1)
    assert ("a", 0) in state.tested_runs()
    assert ("a", 1) not in state.tested_runs()
    assert list(state.failures("run")) == [Job("a", "run", 1, 1)]


def test_pruning_gives_up_later_folds_and_ends_with_the_same_jobs(tmp_path: Path) -> None:
    spec = study(trials=7, prune=True)
    record = StudyFolder(tmp_path, spec)
    state = record.state
    score = {0: 0.5, 1: 0.4, 2: 0.3, 3: 0.2, 4: 0.6, 5: 0.1, 6: 0.7}
    done = finish_all(record, lambda job: score[job.number] if job.stage == "trial" else 0.5)
    assert Job("a", "trial", 5, 0) in done
    assert Job("a", "trial", 5, 1) not in done, "0.1 is below the median of five, 0.4"
    assert Job("a", "trial", 6, 1) in done
    assert state.trials("a")[5].pruned
    assert state.to_do == []
    assert len(done) == len(study_jobs(spec)) - 2, "one fold of each searched method"


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_the_work_ends_in_the_same_settings(tmp_path: Path, seed: int) -> None:
    import random

    spec, draw = study(trials=6), random.Random(seed)

    def score(job: Job, record: StudyFolder) -> float:
        return record.state.parameters(job).get("model.loss.init_args.margin", 0.5) / (2 + job.fold)

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


def test_the_best_trials_are_trained_again_before_one_is_chosen(tmp_path: Path) -> None:
    spec = study(final=2)
    record = StudyFolder(tmp_path, spec)
    state = record.state
    trials, again = [0.5, 0.9, 0.2, 0.8], [0.3, 0.6]  # trial 1, then trial 3: mean 0.6 and 0.7

    def score(job: Job) -> float:
        return trials[job.number] if job.stage == "trial" else again[job.number] if job.stage == "final" else 0.4

    for fold in range(2):
        for number in range(4):
            finish(record, Job("a", "trial", number, fold), score(Job("a", "trial", number, fold)))
    finals = [Job("a", "final", rank, fold) for rank in range(2) for fold in range(2)]
    assert [job for job in state.ready() if job.method == "a"] == finals
    finish_all(record, score)
    assert state.to_do == []
    assert [trial.number for trial in state.candidates("a")] == [1, 3]
    assert state.parameters(Job("a", "final", 1, 0)) == state.trials("a")[3].parameters
    assert state.parameters(Job("a", "run", 0, 0)) == state.trials("a")[3].parameters
    assert (selected(record)["a"].trial, selected(record)["a"].value) == (3, pytest.approx(0.7))
    seeds = {stage: job_seed(spec.seed, Job("a", stage, 0, 0)) for stage in ("trial", "final", "run")}
    assert len({*seeds.values()}) == 3, "fresh seeds"
    assert job_seed(spec.seed, Job("a", "final", 1, 0)) == seeds["final"], "equal ones, for equal conditions"
    rows = [row for row in collect_rows(record, {}) if (row.method, row.stage) == ("a", "final")]
    assert [(row.trial, row.run, row.fold, row.value) for row in rows] == [
        *((1, None, fold, 0.3) for fold in range(2)),
        *((3, None, fold, 0.6) for fold in range(2)),
    ]
    assert StudyFolder(tmp_path, spec).state.to_do == []


def test_a_final_that_fails_is_not_chosen_and_fewer_trials_with_a_value_have_fewer(tmp_path: Path) -> None:
    record = StudyFolder(tmp_path, study(final=3))
    state = record.state

    def score(job: Job) -> float | None:
        if job.stage == "trial":
            return None if job.number < 2 else 0.1 * job.number
        return None if (job.method, job.stage, job.number) == ("a", "final", 0) else 0.1

    done = finish_all(record, score)
    assert {job.number for job in done if (job.method, job.stage) == ("a", "final")} == {0, 1}
    assert state.to_do == []
    assert selected(record)["a"].trial == 2, "trial 3 is better and failed the second time"
    assert selected(record)["b"].trial == 3
    assert "final 0 fold 0: the loss is nan at step 3" in selected(record)["a"].failures


def test_without_finals_the_identity_is_what_it_was() -> None:
    assert "final" not in study().identity()["search"]
    assert study(final=2).method_hash("a") != study().method_hash("a")


@pytest.mark.parametrize("final", [1, 5])
def test_too_few_or_too_many_finals_are_refused(final: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"search\.final .: there is nothing to choose .*; give 2 to 4, or 0"):
        search_settings(tmp_path / "study.yaml", {"trials": 4, "final": final})
