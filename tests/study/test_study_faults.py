"""What a study does when its disk, its files, its clock or its methods go wrong: nothing that is finished is lost."""

import json
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml
from printed import numbers
from study_engine import tables
from toy_study import run_study

from levelfield.analysis.status import status_lines
from levelfield.cli.main import main
from levelfield.core.ledger import EVALUATED, Evaluation, begin, read_lines
from levelfield.errors import UserError
from levelfield.storage.atomic import storing, temporary_name
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.training.run_folder import MetricsFile

LAST = "jobs/arcface/run1/fold1"


def unopened(folder: Path) -> Path:
    """The study as it was when its trainings were done."""
    for path in (*folder.rglob("test/result.json"), *folder.rglob("tested.safetensors")):
        path.unlink()
    for name in ("ledger.jsonl", "results.csv", "summary.csv"):
        (folder / name).unlink()
    return folder


def one_job_left(folder: Path) -> Path:
    (unopened(folder) / LAST / "result.json").unlink()
    return folder


def interrupted(folder: Path) -> Path:
    """The study as it was when one run was left to be tested."""
    (folder / "jobs/arcface/run1/test/result.json").unlink()
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:1]))
    return folder


def evaluations(folder: Path) -> int:
    return sum(line["event"] == EVALUATED for line in read_lines(folder / "ledger.jsonl"))


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the system refuses the rest, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Which file is the first that is too large, from which state of the study. A checkpoint of the toy has 1.5 MB, its
# embeddings 20 kB, results.csv 4 kB and study.yaml 1.6 kB.
LIMITS = {
    f"{LAST}/best.ckpt": (1_000_000, one_job_left),
    "jobs/pretrained/run0/fold0/tested.safetensors": (20_000, unopened),
    "results.csv": (2_500, lambda folder: folder),
    "study.yaml": (1_500, lambda folder: folder),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_a_file_that_cannot_be_written_is_named_and_the_study_goes_on_later(
    name: str, toy_file: Path, copy: Path, finished: Path, capfd: pytest.CaptureFixture[str], monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))  # other tests have filled the session's ledger
    size, state = LIMITS[name]
    state(copy)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("result.json")}
    words = ["study", "run", str(toy_file), "--output", str(copy)]
    with files_up_to(size):
        assert main(words) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert error.startswith(f"levelfield: {copy / name}: ")
    assert not list(copy.rglob("*.tmp"))
    run_study(copy, load_spec(toy_file))
    assert tables(copy) == tables(finished)
    assert evaluations(copy) == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_full_disk_logs_and_the_ledger_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    with pytest.raises(UserError, match=str(path)), storing(path):
        Path("/dev/full").write_bytes(b"a table")
    metrics = MetricsFile(str(tmp_path), name="", version="")
    metrics.log_metrics({"loss": 0.5})
    (tmp_path / "metrics.csv").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"metrics\.csv"):
        metrics.save()
    what = Evaluation("toy", ["ab" * 32], "a test", configuration="a long configuration" * 20)
    with files_up_to(300), pytest.raises(UserError, match=r"ledger\.jsonl"):
        begin(what, tmp_path)
    assert evaluations(tmp_path) == 0
    begin(what, tmp_path)
    assert evaluations(tmp_path) == 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "not text": lambda content: b"\xff\xfe" + content,
    "no mapping": lambda content: b"[]\n",
    "a key gone": lambda content: content.replace(b'"validation"', b'"vaIidation"'),
    "of another setting": lambda content: content.replace(b'"configuration": "', b'"configuration": "0'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_named_and_kept(damage: str, copy: Path, spec: StudySpec) -> None:
    path = copy / LAST / "result.json"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(UserError, match=rf"{path}|: arcface: ") as refused:
        run_study(copy, spec)
    assert len(str(refused.value).splitlines()) == 1
    assert path.exists(), "nothing is thrown away without being asked"


def test_torn_embeddings_of_an_interrupted_evaluation_are_computed_again(copy, finished, spec):
    embeddings = interrupted(copy) / LAST / "tested.safetensors"
    embeddings.write_bytes(embeddings.read_bytes()[:-20])
    run_study(copy, spec)
    assert tables(copy) == tables(finished)
    assert evaluations(copy) == 1
    again, before = (safetensors.torch.load_file(place / LAST / "tested.safetensors") for place in (copy, finished))
    assert all(torch.equal(again[name], before[name]) for name in ("embeddings", "labels", "index"))


def test_a_damaged_study_file_or_ledger_is_refused_in_one_line(copy: Path, spec: StudySpec) -> None:
    path, ledger = copy / "study.yaml", copy / "ledger.jsonl"
    whole, lines = path.read_text(), ledger.read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole) - 1, 397)]
    damaged += ["[]", "methods: 3", whole.replace("methods:\n", "methods: {}\nolds:\n"), "\0", f"{whole}\n: {{"]
    for text in damaged:
        path.write_text(text)
        with pytest.raises(UserError, match=r"study\.yaml") as refused:
            run_study(copy, spec)
        assert len(str(refused.value).splitlines()) == 1
    path.write_text(whole)
    for line in (b"{}", b'{"event": "opened"}', b"\xff", b"[]", b""):
        ledger.write_bytes(line + b"\n" + lines)
        with pytest.raises(UserError, match=r"ledger\.jsonl, line 1"):
            run_study(copy, spec)
    ledger.write_bytes(lines)
    run_study(copy, spec)
    assert StudySpec.read(path) == spec


def test_a_study_killed_before_its_first_file_was_written_can_begin(toy_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / ".study.yaml.tmp").write_text("name: t")
    missing = {"data.dataset": "ImageTable", "data.dataset.table": "missing.csv"}
    with pytest.raises(UserError, match=r"missing\.csv"):
        run_study(folder, load_spec(toy_file, missing))


@pytest.mark.full
def test_files_left_by_a_kill_do_no_harm(copy: Path, finished: Path, spec: StudySpec) -> None:
    one_job_left(copy)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in ("results.csv", "study.yaml", f"{LAST}/best.ckpt", "jobs/arcface/run1/test/result.json"):
        left = (copy / name).with_name(temporary_name((copy / name).name, ended.pid))
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half a")
    (copy / LAST / "last.ckpt").write_bytes((copy / LAST / "best.ckpt").read_bytes()[:1000])
    (copy / ".running.json").write_text('{"process": 1, "ti')
    run_study(copy, spec)
    assert tables(copy) == tables(finished)
    assert not list(copy.rglob("*.tmp"))


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(copy, finished, spec, monkeypatch):
    one_job_left(copy)
    true_time, jumps = time.time, random.Random(0)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: true_time() + jumps.choice([-1, 1]) * 10 * 365 * 86400)
        run_study(copy, spec)
    assert tables(copy) == tables(finished)
    result = json.loads((copy / LAST / "result.json").read_text())
    assert 0 < result["seconds"] < 600


FAULTY_LOSS = '''
import torch
from torch import nn


class FaultyLoss(nn.Module):
    """Diverges at the second step where `strength` is high, and needs too much memory where it is low."""

    def __init__(self, strength: float = 0.5) -> None:
        super().__init__()
        self.strength = strength
        self.steps = 0

    def forward(self, embeddings, labels):
        self.steps += 1
        loss = embeddings.square().sum()
        if self.strength < 0.3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return loss * float("nan") if self.strength > 0.7 and self.steps == 2 else loss
'''


@pytest.mark.slow
def test_a_trial_that_diverges_or_needs_too_much_memory_is_recorded_and_the_search_goes_on(
    toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_loss.py").write_text(FAULTY_LOSS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    content = yaml.safe_load(toy_file.read_text())
    content["methods"] = {"faulty": {"model": {"loss": {"class_path": "faulty_loss.FaultyLoss"}}}}
    content["spaces"] = {"faulty": {"model.loss.init_args.strength": {"low": 0.0, "high": 1.0}}}
    content["runs"] = 1
    content["search"] = {"trials": 5}
    Path("faulty.yaml").write_text(yaml.safe_dump(content))
    assert main(["study", "run", "faulty.yaml", "--trainer.max_epochs=1", "--output=out"]) == 0
    record = StudyFolder.begun(Path("out"))
    state = record.state
    strengths = {trial.number: trial.parameters["model.loss.init_args.strength"] for trial in state.trials("faulty")}
    diverged = [number for number, strength in strengths.items() if strength > 0.7]
    too_large = [number for number, strength in strengths.items() if strength < 0.3]
    assert diverged
    assert too_large
    assert 0 < len(diverged) + len(too_large) < 5
    reasons = dict.fromkeys(diverged, "nan at step 1") | dict.fromkeys(too_large, "--data.batch_size")
    failures = state.failures("trial")
    assert {job.number for job in failures} == set(reasons)
    status = status_lines(record)
    for job, why in failures.items():
        assert reasons[job.number] in why
        assert any(f"{job}: {why}" in line for line in status)
        assert not list((Path("out") / job.path).glob("*.ckpt"))
    assert next(numbers(line) for line in status if line.startswith("done")) == [14, 14]
    run = state.results[Job("faulty", "run", 0, 0)]
    assert 0.3 <= run["parameters"]["model.loss.init_args.strength"] <= 0.7


def write_images(folder: Path) -> Path:
    """A table of 12 classes of 4 pictures."""
    from PIL import Image

    folder.mkdir()
    rows = ["path,label"]
    for label in range(12):
        for sample in range(4):
            Image.new("RGB", (40, 40), (label * 20, sample * 60, 99)).save(folder / f"{label:02}_{sample}.png")
            rows.append(f"{label:02}_{sample}.png,class {label:02}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


class OwnStudy:
    """A study of one's own pictures, one method without a search, and what can happen to these."""

    def __init__(self, toy_file: Path, folder: Path) -> None:
        self.table = write_images(folder / "images")
        overrides: dict[str, Any] = {"data.dataset": "ImageTable", "data.dataset.table": str(self.table)}
        overrides |= {"runs": 1, "trainer.max_epochs": 1, "search.trials": 0}
        self.spec = load_spec(toy_file, overrides)
        self.folder = folder / "study"

    def run(self) -> None:
        run_study(self.folder, self.spec)

    def replace_picture(self, name: str) -> None:
        with open(self.table.parent / name, "ab") as file:
            file.write(bytes(100))

    def replace_in_table(self, old: str, new: str) -> None:
        assert old in self.table.read_text()
        self.table.write_text(self.table.read_text().replace(old, new))

    @contextmanager
    def changed(self, change: Callable[["OwnStudy"], None]) -> Iterator[None]:
        before = {path: path.read_bytes() for path in self.table.parent.iterdir()}
        change(self)
        yield
        for path, content in before.items():
            path.write_bytes(content)


@pytest.fixture
def own_study(toy_file: Path, tmp_path: Path) -> OwnStudy:
    return OwnStudy(toy_file, tmp_path)


CHANGES: dict[str, Callable[[OwnStudy], None]] = {
    "a picture": lambda study: study.replace_picture("00_0.png"),
    "a picture's class": lambda study: study.replace_in_table("00_0.png,class 00", "00_0.png,class 01"),
    "a class that leaves": lambda study: study.replace_in_table("class 02", "class 99"),
    "a class that joins": lambda study: study.replace_in_table(
        "04_0.png,class 04\n04_1.png,class 04", "04_0.png,class 04a\n04_1.png,class 04a"
    ),
}


@pytest.mark.slow
def test_data_that_changed_on_disk_are_refused_whether_jobs_are_left_or_the_test_alone(own_study: OwnStudy) -> None:
    own_study.run()
    finished = Path(shutil.copytree(own_study.folder, own_study.folder.with_name("finished")))
    for state in (one_job_left, unopened):
        unopened(own_study.folder)
        if state is one_job_left:
            (own_study.folder / "jobs/arcface/run0/fold1/result.json").unlink()
        for change in CHANGES.values():
            with own_study.changed(change), pytest.raises(UserError, match=r"\bdata\b"):
                own_study.run()
            assert not (own_study.folder / "ledger.jsonl").exists()
        own_study.run()
        assert tables(own_study.folder) == tables(finished)


@pytest.mark.parametrize(("columns", "key"), [("train,query", "split to test"), ("test,query", "role gallery")])
def test_a_test_half_that_cannot_be_scored_is_refused_before_the_first_job(columns, key, own_study):
    header, *rows = own_study.table.read_text().splitlines()
    last = [f"{row},{columns}" if row[-2:] >= "08" else f"{row},train," for row in rows]
    own_study.table.write_text("\n".join([f"{header},split,role", *last]))
    with pytest.raises(UserError, match=key):
        own_study.run()
    assert not (own_study.folder / "jobs").exists()
    assert not (own_study.folder / "ledger.jsonl").exists()
