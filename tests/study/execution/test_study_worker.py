"""How a worker finds its next job: what it opens does not grow with the study."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from levelfield.storage.lock import Lock
from levelfield.study.definition.search_settings import SearchSettings
from levelfield.study.spec import StudySpec
from levelfield.study.execution import worker
from levelfield.study.jobs.attempts import part_of
from levelfield.study.jobs import Job
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

opened: list[str] | None = None


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and opened is not None:
        opened.append(str(arguments[0]))


@contextmanager
def listening() -> Iterator[list[str]]:
    """The files that are opened meanwhile, whether they are there or not."""
    global opened  # a hook of the interpreter cannot be taken away
    sys.addaudithook(hear)
    opened = []
    try:
        yield opened
    finally:
        opened = None


def study() -> StudySpec:
    config = {"model": {"loss": {"class_path": "TripletMarginLoss"}}, "data": {"dataset": "Glyphs"}, "trainer": {}}
    methods = {f"method{number}": config for number in range(5)}
    space = {"model.loss.init_args.margin": {"low": 0.0, "high": 1.0}}
    return StudySpec(
        name="toy", folds=4, runs=8, seed=5, threads=1, methods=methods, search=SearchSettings(trials=3),
        spaces=dict.fromkeys(methods, space),
    )  # fmt: skip


def finish(record: StudyRecord, job: Job, *_: Any) -> dict[str, Any]:
    (record.folder / job.path).mkdir(parents=True, exist_ok=True)
    (record.folder / job.checkpoint).touch()
    found = {"seconds": 1.0, "validation": {"map_at_r": 0.1 * job.number}}
    return record.finish_job(job, record.state.parameters(job), found)


def progress_of(record: StudyRecord) -> StudyProgress:
    return StudyProgress(Console(file=io.StringIO()), "toy", record.state, {})


def test_what_others_have_done_is_found_job_by_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "do_job", finish)
    late, first = StudyRecord(tmp_path, study()), StudyRecord(tmp_path, study())
    assert len(late.state.to_do) == 4 + 5 * 3 * 4 + 5 * 8 * 4
    worker.work(first, progress_of(first), 30.0)
    assert len(first.state.results) == 224
    with listening() as files:
        worker.work(late, progress_of(late), 30.0)
    assert late.state.results.keys() == first.state.results.keys()
    results = [file for file in files if file.endswith("result.json")]
    assert len(results) == len(set(results)) == 224, "one look a job"


def test_waiting_for_others_opens_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "do_job", finish)
    record = StudyRecord(tmp_path, study())
    last = record.state.every_job[-1]
    with Lock(tmp_path, part_of(last), str(last)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.time, "sleep", lambda seconds: (_ for _ in ()).throw(InterruptedError))
        with pytest.raises(InterruptedError):
            worker.work(record, progress_of(record), 30.0)
        assert record.state.to_do == [last]
        waiting = worker._Worker(record, progress_of(record), 30.0, None)
        waiting.do_next()
        with listening() as files:
            assert not waiting.do_next()
    assert [file for file in files if file.endswith("result.json")] == []
    assert len(files) < 10, "looking for work costs the same whatever is done"
