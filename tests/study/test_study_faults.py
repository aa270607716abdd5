"""What a study does when it is killed, or its disk, its files or its methods go wrong: nothing finished is lost."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from forked import Forked, children
from full_disk import full_disk
from own_images import own_images
from printed import numbers
from refused import refuses
from study_engine import evaluations, results, study_process, tables
from toy_study import run_study

from levelfield.analysis.status import status_lines
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.core.ledger import Evaluation, begin
from levelfield.core.processes import is_running
from levelfield.study import seal
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job
from levelfield.study.lock import running_process
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.training.run_folder import MetricsFile

LAST = "jobs/arcface/run1/fold1"


def unopened(folder: Path) -> None:
    """The study as it was when its trainings were done."""
    for path in (*folder.rglob("test/result.json"), *folder.rglob("tested.safetensors")):
        path.unlink()
    for name in ("ledger.jsonl", "results.csv", "summary.csv"):
        (folder / name).unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),  # a checkpoint of the toy has 1.5 MB, its embeddings 20 kB, results.csv 4 kB, study.yaml 1.6 kB
    [(f"{LAST}/best.ckpt", 1_000_000), ("features", 20_000), ("results.csv", 2_500), ("study.yaml", 1_500)],
)
def test_a_file_that_cannot_be_written_is_named_and_the_study_goes_on_later(
    name, size, toy_file, copy, finished, capfd, monkeypatch, tmp_path
):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))  # other tests have filled the session's ledger
    if name == "features" or "best.ckpt" in name:
        unopened(copy)
    if "best.ckpt" in name:
        (copy / LAST / "result.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}
    with full_disk(size):
        assert main(["study", "run", str(toy_file), "--output", str(copy), "--executor.workers", "1"]) == 2
    named = f"the features of glyphs into {tmp_path}" if name == "features" else str(copy / name)
    *_, error = capfd.readouterr().err.splitlines()
    assert (error.startswith("levelfield: "), named in error) == (True, True), error
    assert not list(copy.rglob("*.tmp"))
    run_study(copy, load_spec(toy_file))
    assert tables(copy) == tables(finished)
    assert evaluations(copy) == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_full_disk_logs_and_the_ledger_are_named_too(tmp_path: Path) -> None:
    metrics = MetricsFile(str(tmp_path), name="", version="")
    metrics.log_metrics({"loss": 0.5})
    (tmp_path / "metrics.csv").symlink_to("/dev/full")
    refuses(r"metrics\.csv", metrics.save)
    what = Evaluation("toy", ["ab" * 32], "a test", configuration="a long configuration" * 20)
    with full_disk(300), pytest.raises(UserError, match=r"ledger\.jsonl"):
        begin(what, tmp_path)
    assert evaluations(tmp_path) == 0
    begin(what, tmp_path)
    assert evaluations(tmp_path) == 1


def test_a_damaged_ledger_is_refused_in_one_line(copy: Path, spec: StudySpec) -> None:
    ledger = copy / "ledger.jsonl"
    lines = ledger.read_bytes()
    for line in (b"{}", b'{"event": "opened"}', b"\xff", b"[]", b""):
        ledger.write_bytes(line + b"\n" + lines)
        refuses(r"ledger\.jsonl, line 1", run_study, copy, spec)
    ledger.write_bytes(lines)
    run_study(copy, spec)


# Diverges at the second step where `strength` is high, and needs too much memory where it is low.
FAULTY_LOSS = """
import torch
from torch import nn


class FaultyLoss(nn.Module):
    search_space = {"strength": {"low": 0.0, "high": 1.0}}

    def __init__(self, strength: float = 0.5) -> None:
        super().__init__()
        self.strength, self.steps = strength, 0

    def forward(self, embeddings, labels):
        self.steps += 1
        loss = embeddings.square().sum()
        if self.strength < 0.3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return loss * float("nan") if self.strength > 0.7 and self.steps == 2 else loss
"""


@pytest.mark.slow
def test_a_trial_that_diverges_or_needs_too_much_memory_is_recorded_and_the_search_goes_on(toy_file, here):
    (here / "faulty_loss.py").write_text(FAULTY_LOSS)
    content = yaml.safe_load(toy_file.read_text())
    content |= {"runs": 1, "search": {"trials": 5}, "methods": ["faulty_loss.FaultyLoss"]}
    del content["spaces"]
    Path("faulty.yaml").write_text(yaml.safe_dump(content))
    words = ["study", "run", "faulty.yaml", "--trainer.max_epochs=1", "--output=out", "--executor.workers=1"]
    assert main(words) == 0
    record = StudyFolder.begun(Path("out"))
    strengths = [next(iter(trial.parameters.values())) for trial in record.state.trials("faulty_loss")]
    reasons = ["nan at step 1" if each > 0.7 else "--data.batch_size" if each < 0.3 else "" for each in strengths]
    assert len({*reasons}) == 3
    failures = record.state.failures("trial")
    assert {job.number for job in failures} == {number for number, reason in enumerate(reasons) if reason}
    status = status_lines(record)
    for job, why in failures.items():
        assert reasons[job.number] in why
        assert any(f"{job}: {why}" in line for line in status)
        assert not list((Path("out") / job.path).glob("*.ckpt"))
    assert next(numbers(line) for line in status if line.startswith("done")) == [15, 15]
    run = record.state.results[Job("faulty_loss", "run", 0, 0)]
    assert 0.3 <= run["parameters"]["model.loss.init_args.strength"] <= 0.7


@pytest.fixture
def own(toy_file: Path, tmp_path: Path) -> StudySpec:
    """A study of the pictures of `table.csv`, 12 classes of 4, without a search."""
    data = {"data.dataset": "ImageTable", "data.dataset.table": str(own_images(tmp_path, classes=12))}
    return load_spec(toy_file, {**data, "runs": 1, "trainer.max_epochs": 1, "search.trials": 0})


# A picture, its class, a class that leaves, and one that joins: a file, an old and a new text.
CHANGES = [
    ("0_0.png", b"", b""),
    ("table.csv", b"0_0.png,class 00", b"0_0.png,class 01"),
    ("table.csv", b"class 02", b"class 99"),
    ("table.csv", b"4_0.png,class 04\n4_1.png,class 04", b"4_0.png,class 04a\n4_1.png,class 04a"),
]


@pytest.mark.slow
def test_data_that_changed_on_disk_are_refused_whether_jobs_are_left_or_the_test_alone(own, tmp_path):
    folder = tmp_path / "study"
    run_study(folder, own)
    finished = tables(folder)
    for job_left in (True, False):
        unopened(folder)
        if job_left:
            (folder / "jobs/arcface/run0/fold1/result.json").unlink()
        for name, old, new in CHANGES:
            before = (tmp_path / name).read_bytes()
            after = before.replace(old, new) if old else before + bytes(100)
            assert after != before
            (tmp_path / name).write_bytes(after)
            refuses(r"\bdata\b", run_study, folder, own)
            assert not (folder / "ledger.jsonl").exists()
            (tmp_path / name).write_bytes(before)
        run_study(folder, own)
        assert tables(folder) == finished


@pytest.mark.parametrize(("columns", "key"), [("train,query", "split"), ("test,query", "roles")])
def test_a_test_half_that_cannot_be_scored_is_refused_before_the_first_job(columns, key, own, tmp_path):
    header, *rows = (tmp_path / "table.csv").read_text().splitlines()
    last = [f"{row},{columns}" if row[-2:] >= "08" else f"{row},train," for row in rows]
    (tmp_path / "table.csv").write_text("\n".join([f"{header},split,role", *last]))
    refuses(key, run_study, tmp_path / "study", own)
    assert not {"jobs", "ledger.jsonl"} & {path.name for path in (tmp_path / "study").iterdir()}


# The toy study: 23 jobs and the test scores of 5 runs.
RESULTS = 27


def finish(file: Path, folder: Path, *options: str) -> None:
    process = study_process(file, folder, *options)
    printed = process.wait()
    assert process.exit_code == 0, printed


@pytest.mark.slow
@pytest.mark.processes
def test_kills_and_a_ctrl_c_change_no_byte(toy_file: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    jobs = folder / "jobs"

    def stopped(moment: Path, how: signal.Signals = signal.SIGKILL) -> Forked:
        process = study_process(toy_file, folder)
        process.wait_for(moment.exists)
        process.signal(how)
        process.wait()
        return process

    # In a trial's training: its logger has begun to write.
    stopped(jobs / "contrastive/trial1/fold1/metrics.csv")
    assert not (jobs / "contrastive/trial1/fold1/result.json").exists()
    assert (jobs / "contrastive/trial1/fold0/result.json").exists()
    # While a run's job is being set up or trained.
    process = stopped(jobs / "arcface/run0/fold0/config.yaml", signal.SIGINT)
    assert process.exit_code == 130
    assert len(results(folder, "*/*/*")) >= 16
    assert f"continue with: levelfield study run {toy_file}" in process.printed().splitlines()[-1]
    # Between a checkpoint and its result.
    stopped(jobs / "arcface/run1/fold0/best.ckpt")
    # While the test classes are evaluated.
    stopped(jobs / "contrastive/run0/fold1/tested.safetensors")
    assert evaluations(folder) == 1
    assert not (jobs / "arcface/run1/test/result.json").exists()

    finish(toy_file, folder)
    assert evaluations(folder) == 1
    assert tables(folder) == tables(finished)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
def test_twenty_kills_change_no_byte_and_end_workers_and_loaders(toy_file, finished, tmp_path, workers):
    draw, folder, seen = random.Random(workers), tmp_path / "killed", set[int]()
    options = (f"--executor.workers={workers}", "--data.num_workers=1")
    for number, moment in enumerate(sorted(draw.sample(range(RESULTS), 20))):
        process = study_process(toy_file, folder, *options)
        while process.exit_code is None and len(results(folder, "*/*/*")) < moment:
            time.sleep(0.02)
        time.sleep(draw.random() * 2)
        below = children(process.pid)
        process.signal(signal.SIGTERM if number % 2 else signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while any(map(is_running, below)):
            assert time.monotonic() < deadline, "a worker or a loader outlives its study"
            time.sleep(0.01)
        seen |= {*below}
    assert (running_process(folder), bool(seen)) == (None, True)
    finish(toy_file, folder, *options)
    assert evaluations(folder) == 1
    assert tables(folder) == tables(finished)
    assert not list(folder.rglob(".*.tmp"))


@pytest.mark.processes
def test_the_loaders_of_the_test_stage_do_not_add_up(toy_file, copy, monkeypatch):
    """Between the scores of two methods, no loader of the first one is left."""
    (copy / "ledger.jsonl").write_text((copy / "ledger.jsonl").read_text().splitlines(keepends=True)[0])
    for path in (*copy.glob("jobs/*/run1/*/tested.safetensors"), *copy.glob("jobs/*/run1/test/result.json")):
        path.unlink()
    alive: list[int] = []
    score = seal.score_folds

    def counted(*folds):
        alive.append(len(children(os.getpid())))
        return score(*folds)

    before = len(children(os.getpid()))
    monkeypatch.setattr(seal, "score_folds", counted)
    run_study(copy, load_spec(toy_file, {"data.num_workers": 2}))
    assert alive == [before] * 2
