"""What a study does when its disk, its files or its methods go wrong: nothing that is finished is lost."""

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from own_images import noise_images, own_images
from PIL import Image
from printed import numbers
from study_engine import tables
from toy_study import run_study

from levelfield.analysis.status import status_lines
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors
from levelfield.core.ledger import EVALUATED, Evaluation, begin, read_lines
from levelfield.data import ImageTable
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
    "features": (20_000, unopened),  # of the untrained rows
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
    words = ["study", "run", str(toy_file), "--output", str(copy), "--executor.workers", "1"]
    with files_up_to(size):
        assert main(words) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    named = f"cannot write the features of glyphs into {tmp_path}" if name == "features" else f"{copy / name}: "
    assert error.startswith(f"levelfield: {named}")
    assert not list(copy.rglob("*.tmp"))
    run_study(copy, load_spec(toy_file))
    assert tables(copy) == tables(finished)
    assert evaluations(copy) == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_full_disk_logs_and_the_ledger_are_named_too(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    with pytest.raises(UserError, match=str(path)), explain_write_errors(path):
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


def test_a_damaged_study_file_or_ledger_is_refused_in_one_line(copy: Path, spec: StudySpec) -> None:
    path, ledger = copy / "study.yaml", copy / "ledger.jsonl"
    whole, lines = path.read_text(), ledger.read_bytes()
    damaged = [*(whole[:cut] for cut in range(0, len(whole) - 1, 397)), "[]", "methods: 3", "\0", f"{whole}\n: {{"]
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


# Diverges at the second step where `strength` is high, and needs too much memory where it is low.
FAULTY_LOSS = """
import torch
from torch import nn


class FaultyLoss(nn.Module):
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
    space = {"model.loss.init_args.strength": {"low": 0.0, "high": 1.0}}
    content = yaml.safe_load(toy_file.read_text()) | {"runs": 1, "search": {"trials": 5}, "spaces": {"faulty": space}}
    content["methods"] = {"faulty": {"model": {"loss": {"class_path": "faulty_loss.FaultyLoss"}}}}
    Path("faulty.yaml").write_text(yaml.safe_dump(content))
    words = ["study", "run", "faulty.yaml", "--trainer.max_epochs=1", "--output=out", "--executor.workers=1"]
    assert main(words) == 0
    record = StudyFolder.begun(Path("out"))
    strengths = {trial.number: next(iter(trial.parameters.values())) for trial in record.state.trials("faulty")}
    diverged = {number: "nan at step 1" for number, strength in strengths.items() if strength > 0.7}
    too_large = {number: "--data.batch_size" for number, strength in strengths.items() if strength < 0.3}
    assert min(len(diverged), len(too_large), 5 - len(diverged | too_large)) > 0
    failures = record.state.failures("trial")
    assert {job.number for job in failures} == set(diverged | too_large)
    status = status_lines(record)
    for job, why in failures.items():
        assert (diverged | too_large)[job.number] in why
        assert any(f"{job}: {why}" in line for line in status)
        assert not list((Path("out") / job.path).glob("*.ckpt"))
    assert next(numbers(line) for line in status if line.startswith("done")) == [15, 15]
    run = record.state.results[Job("faulty", "run", 0, 0)]
    assert 0.3 <= run["parameters"]["model.loss.init_args.strength"] <= 0.7


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 12 classes of 4 pictures."""
    return own_images(tmp_path, classes=12)


def own_study(toy_file: Path, table: Path) -> StudySpec:
    """A study of one's own pictures, without a search."""
    data = {"data.dataset": "ImageTable", "data.dataset.table": str(table)}
    return load_spec(toy_file, {**data, "runs": 1, "trainer.max_epochs": 1, "search.trials": 0})


CHANGES = {
    "a picture": ("0_0.png", None, None),
    "a picture's class": ("table.csv", "0_0.png,class 00", "0_0.png,class 01"),
    "a class that leaves": ("table.csv", "class 02", "class 99"),
    "a class that joins": ("table.csv", "4_0.png,class 04\n4_1.png,class 04", "4_0.png,class 04a\n4_1.png,class 04a"),
}


@pytest.mark.slow
def test_data_that_changed_on_disk_are_refused_whether_jobs_are_left_or_the_test_alone(toy_file, table, tmp_path):
    spec, folder = own_study(toy_file, table), tmp_path / "study"
    run_study(folder, spec)
    finished = tables(folder)
    for job_left in (True, False):
        unopened(folder)
        if job_left:
            (folder / "jobs/arcface/run0/fold1/result.json").unlink()
        for name, old, new in CHANGES.values():
            before = (tmp_path / name).read_bytes()
            after = before + bytes(100) if old is None else before.replace(old.encode(), new.encode())
            assert after != before
            (tmp_path / name).write_bytes(after)
            with pytest.raises(UserError, match=r"\bdata\b"):
                run_study(folder, spec)
            assert not (folder / "ledger.jsonl").exists()
            (tmp_path / name).write_bytes(before)
        run_study(folder, spec)
        assert tables(folder) == finished


@pytest.mark.parametrize(
    ("columns", "key"), [("train,query", "split to test"), ("test,query", "roles query and gallery")]
)
def test_a_test_half_that_cannot_be_scored_is_refused_before_the_first_job(columns, key, toy_file, table, tmp_path):
    header, *rows = table.read_text().splitlines()
    last = [f"{row},{columns}" if row[-2:] >= "08" else f"{row},train," for row in rows]
    table.write_text("\n".join([f"{header},split,role", *last]))
    with pytest.raises(UserError, match=key):
        run_study(tmp_path / "study", own_study(toy_file, table))
    assert not (tmp_path / "study/jobs").exists()
    assert not (tmp_path / "study/ledger.jsonl").exists()


@pytest.mark.slow
def test_the_test_pictures_are_decoded_once_for_the_features_and_once_for_all_runs(toy_file, tmp_path, monkeypatch):
    """The cache decodes each once, after a look at some for the room that they take; what is scored reads the cache."""
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("levelfield.data.image_cache.LOOKED_AT", 1)
    opened: Counter[str] = Counter()
    load = ImageTable.load

    def counting(self: ImageTable, key: str) -> Image.Image:
        opened[key] += 1
        return load(self, key)

    monkeypatch.setattr(ImageTable, "load", counting)
    pictures = noise_images(tmp_path, 64, samples=4, height=80, width=90, suffix=".jpg")
    run_study(tmp_path / "study", own_study(toy_file, pictures))
    assert sorted(opened.values()) == [2] * 62 + [3] * 2
