"""A trial's suggestion is asked for once, whoever needs it, and again only where it follows from something else."""

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from levelfield.study.definition.search_settings import SearchSettings
from levelfield.study.spec import StudySpec
from levelfield.study.jobs import Job
from levelfield.study.record import StudyRecord
from levelfield.study.search import asked_once
from levelfield.study.search_space import Range
from levelfield.study.suggest import suggest

SPACE = {"model.loss.init_args.margin": {"low": 0.0, "high": 1.0}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each trial of each method was suggested."""
    counts: Counter[tuple[str, int]] = Counter()

    def counted(space: Any, finished: Any, number: int, seed: int, method: str, sampler: str) -> dict[str, float]:
        counts[method, number] += 1
        return suggest(space, finished, number, seed, method, sampler)

    monkeypatch.setattr(asked_once, "suggest", counted)
    return counts


def study() -> StudySpec:
    config = {"model": {"loss": {"class_path": "TripletMarginLoss"}}, "data": {"dataset": "Glyphs"}, "trainer": {}}
    return StudySpec(
        name="toy", folds=2, runs=1, seed=5, threads=1, methods={"a": config}, search=SearchSettings(trials=7),
        spaces={"a": SPACE},
    )  # fmt: skip


def finish(record: StudyRecord, job: Job) -> None:
    parameters = record.state.parameters(job)
    score = 0.5 - (parameters["model.loss.init_args.margin"] - 0.3) ** 2
    (record.folder / job.path).mkdir(parents=True, exist_ok=True)
    (record.folder / job.checkpoint).touch()
    record.state.results[job] = record.finish_job(job, parameters, {"seconds": 1.0, "validation": {"map_at_r": score}})


def test_workers_that_share_a_trial_ask_once(tmp_path: Path, asked: Counter[tuple[str, int]]) -> None:
    one, two, alone = (StudyRecord(tmp_path / folder, study()) for folder in ("shared", "shared", "alone"))
    for trial in range(7):
        jobs = [Job("a", "trial", trial, fold) for fold in range(2)]
        asking = zip((one, two), jobs, strict=True)
        workers = [threading.Thread(target=record.state.parameters, args=[job]) for record, job in asking]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert one.state.parameters(jobs[0]) == two.state.parameters(jobs[1])
        for record, job in zip((one, two), jobs, strict=True):
            finish(record, job)
        one.refresh(), two.refresh()
    assert asked == {("a", trial): 1 for trial in range(7)}
    for trial in range(7):
        for fold in range(2):
            finish(alone, Job("a", "trial", trial, fold))
    assert alone.state.trials("a") == one.state.trials("a")


def test_another_history_is_asked_anew(tmp_path: Path, asked: Counter[tuple[str, int]]) -> None:
    record = StudyRecord(tmp_path, study())
    for trial in range(6):
        for fold in range(2):
            finish(record, Job("a", "trial", trial, fold))
    before = record.state.parameters(Job("a", "trial", 6, 0))
    assert StudyRecord(tmp_path, study()).state.parameters(Job("a", "trial", 6, 0)) == before
    assert asked["a", 6] == 1
    result = tmp_path / Job("a", "trial", 5, 1).path / "result.json"
    content = json.loads(result.read_text())
    content["validation"]["map_at_r"] = 0.9
    result.write_text(json.dumps(content))
    again = StudyRecord(tmp_path, study())
    after = again.state.parameters(Job("a", "trial", 6, 0))
    assert asked["a", 6] == 2
    assert after == suggest({key: Range(0.0, 1.0) for key in SPACE}, again.state.trials("a"), 6, 5, "a") != before
    shutil.rmtree(tmp_path / "suggestions")
    assert StudyRecord(tmp_path, study()).state.parameters(Job("a", "trial", 6, 0)) == after
