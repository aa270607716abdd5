"""What a user sees when a study goes wrong: one line that names the cause, and nothing that is finished is lost."""

import json
import re
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import pytest
import torch
from refused import refuses
from study_engine import PLAIN, SMALL, results, run_file, scores, small_study, study_process, tables
from toy_study import run_study as run_to_tables

from levelfield.core.errors import OutOfMemory, UserError
from levelfield.study.executors.local import Local
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job
from levelfield.study.lock import running_process
from levelfield.study.rows import load_spec
from levelfield.study.run import run_study
from levelfield.study.workers import Here, Scheduler, Slots, Unit

# The look before the first job calls a loss on noise, which no module has made.
IN_TRAINING = "if not embeddings.is_leaf:\n    "


class Died(BaseException):
    """Stands for the end of a process."""


class Processes(Here):
    """Two slots whose processes this one plays. One that has died or lost its GPU is dropped before its next unit."""

    number = 2

    def __init__(self) -> None:
        self.broken: set[int] = set()

    def submit(self, slot: int, function: Callable[..., Any], *arguments: Any) -> Future:
        assert slot not in self.broken
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except Died:
            future.set_exception(BrokenExecutor())
        if future.exception() or future.result().kind == "error":
            self.broken.add(slot)
        return future

    def drop(self, slot: int) -> None:
        self.broken.remove(slot)


ENDS = {
    "mistaken": UserError("data.csv row 3: no label; add one"),
    "wrong": ZeroDivisionError("division by zero"),
    "exits": SystemExit(3),
    "dies": Died(),
    "full": OutOfMemory("out of memory"),
    "breaks": RuntimeError("CUDA error: device-side assert triggered"),
}


def answer(name: str, tried: int) -> str:
    what, _, times = name.partition(" ")
    if what in ENDS and not (times == "once" and tried):
        raise ENDS[what]
    return name


class Listed:
    """Units of one function that are ready from the start, and what a scheduler of them prints."""

    def __init__(self, slots: Slots, *names: str, debug: bool = False) -> None:
        self.left = {name: Unit(name, name, answer, (name,)) for name in names}
        self.lines: list[str] = []
        self.scheduler = Scheduler(lambda: [*self.left.values()], self.add, slots, self.lines.append, debug)

    def add(self, unit: Unit, value: str) -> None:
        assert self.left.pop(unit.name).name == value


@pytest.mark.parametrize(
    ("name", "tried_again", "alone", "reason"),
    [
        ("wrong", 0, 0, "ZeroDivisionError: division by zero"),
        ("exits", 0, 0, "its code calls exit"),
        ("full", 2, 1, "out of memory, 3 times; .*--executor.workers 1"),
        ("full once", 1, 0, None),
        ("dies", 2, 1, "its process died .*, 3 times"),
        ("dies once", 1, 0, None),
        ("breaks", 0, 0, "RuntimeError: CUDA error"),
    ],
)
def test_a_process_that_dies_or_breaks_is_replaced_and_no_other_unit_is_blamed(name, tried_again, alone, reason):
    work = Listed(Processes(), "first", name, "second", "third")
    if reason:
        refuses(reason, work.scheduler.run)
        assert re.match(f"{name}: {reason}", work.scheduler.given_up.pop(name))
    else:
        work.scheduler.run()
    assert ([*work.left], work.scheduler.given_up) == ([name] if reason else [], {}), "no other unit is left"
    again = [line for line in work.lines if line.startswith(f"{name}: ") and "will be tried again" in line]
    assert (len(again), sum("when nothing else runs" in line for line in again)) == (tried_again, alone)


def test_a_mistake_ends_at_once() -> None:
    work = Listed(Here(), "mistaken", "first")
    refuses(r"data.csv row 3", work.scheduler.run)
    assert [*work.left] == ["mistaken", "first"]


def test_debug_shows_where_your_code_failed() -> None:
    for debug in (False, True):
        work = Listed(Here(), "wrong", debug=debug)
        refuses("wrong: ZeroDivisionError", work.scheduler.run)
        assert ("Traceback" in work.lines[0]) == ("raise ENDS" in work.lines[0]) == debug


@pytest.mark.slow
@pytest.mark.parametrize(("before", "named", "done"), [("", "mine, ", 0), (IN_TRAINING, "mine run 0 fold 0", 2)])
def test_a_loss_that_raises_is_named(here: Path, before: str, named: str, done: int) -> None:
    """Before anything is computed if it cannot take noise, else after the others."""
    file = small_study(here, f"{before}raise KeyError('mine')")
    refuses(rf"{named}.*KeyError: 'mine'", run_file, file, here / "out")
    assert (len(results(here / "out", "contrastive/*/fold*")), results(here / "out", "mine/*/fold*")) == (done, [])


@pytest.mark.slow
@pytest.mark.processes
def test_two_workers_end_with_the_bytes_of_one_though_one_prints_and_dies(here, small_finished, monkeypatch):
    """Lightning takes SLURM's number of a task for its rank, and only rank 0 writes."""
    for name in ("PROCID=1", "LOCALID=1", "NODEID=0", "NTASKS=2", "NTASKS_PER_NODE=2", "STEP_NUM_TASKS=1"):
        monkeypatch.setenv(*f"SLURM_{name}".split("="))
    flag = here / "flag"
    die = (
        "import os; os.system('echo x'); os.write(1, b'y\\n'); print('z')\n"
        f"    if not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'w').close(); os.kill(os.getpid(), 9)"
    )
    file, folder = small_study(here, IN_TRAINING + die), here / "out"
    process = study_process(file, folder, "--executor.workers", "2")
    printed = process.wait().splitlines()
    assert process.exit_code == 0, printed
    assert tables(folder) == tables(small_finished / "out")
    assert printed.count("x") >= 3
    assert len(results(folder)) == 7, "three rows of two folds, and the one PCA"
    assert any(line.startswith("[7/7] ") and line.endswith("; testing") for line in printed)
    (note,) = [line for line in printed if "will be tried again" in line]
    assert note.startswith("mine run 0 fold ")
    written = ("config.yaml", "metrics.csv")
    assert all(path.with_name(name).is_file() for path in results(folder, "mine/*/fold*") for name in written)


@pytest.mark.slow
@pytest.mark.processes
def test_a_second_process_is_refused_and_the_first_goes_on(here: Path) -> None:
    file, folder = small_study(here, IN_TRAINING + "import time; time.sleep(2)"), here / "out"
    process = study_process(file, folder)
    process.wait_for((folder / "jobs/mine/run0/fold0/config.yaml").exists)
    study = StudyFolder(folder, load_spec(file))
    assert running_process(folder)["process"] == process.pid
    refuses(rf"{folder}.*{process.pid}", run_study, study)
    printed = process.wait()
    assert process.exit_code == 0, printed
    assert running_process(folder) is None


def test_a_launcher_that_starts_several_processes_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuses("WORLD_SIZE=2", run_study, StudyFolder(here / "out", load_spec(small_study(here))))


def on_two_devices(text: str, folds: int) -> str:
    there = text.replace("accelerator: cpu,", "accelerator: cpu, devices: 2, strategy: ddp,")
    return there.replace("folds: 2", f"folds: {folds}")


WHOLE_TRUNK = "model: {loss: ContrastiveLoss, embedder: levelfield.models.IdentityEmbedder, embedding_size: 96}"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("folds", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_job_on_two_devices_is_a_command_of_its_own(folds, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")  # a launcher's variables reach no group
    text = on_two_devices(PLAIN, folds).replace("model: {loss: ContrastiveLoss}", WHOLE_TRUNK)
    file = small_study(tmp_path, text=f"{text}derived: {{half: {{of: contrastive, alpha: 0.5}}}}\n")
    study = run_file(file, tmp_path / "two")
    assert study.checkpoint(Job("half", "run", 0, 0)).is_file()
    for fold in range(folds):
        result = json.loads((study.folder / f"jobs/contrastive/run0/fold{fold}/result.json").read_text())
        assert result["sources"]["levelfield/losses/contrastive.py"]
        assert bool(result["validation"]) == (folds > 1)
    assert torch.load(study.folder / "jobs/contrastive/run0/fold0/best.ckpt", weights_only=True)["global_step"] == 2
    if folds > 1:
        before = tables(study.folder)
        (study.folder / "jobs/contrastive/run0/fold0/result.json").unlink()
        assert tables(run_file(file, study.folder).folder) == before


@pytest.mark.full
@pytest.mark.processes
def test_what_ends_a_job_on_two_devices_is_told(here: Path) -> None:
    text = on_two_devices(SMALL, 1).replace("  contrastive: {model: {loss: ContrastiveLoss}}\n", "")
    for end, told in (("raise KeyError('on two devices')", "KeyError"), ("import os; os.kill(os.getpid(), 9)", "died")):
        refuses(f"mine run 0 fold 0.*{told}", run_file, small_study(here, IN_TRAINING + end, text), here / told)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.processes
def test_two_workers_on_one_device_find_what_one_finds_on_the_cpu(toy_file, tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # of the workers, which embed in float32; and here:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings = {"runs": 1, "search.trials": 1, "trainer.precision": "64-true"}
    run_to_tables(tmp_path / "cpu", load_spec(toy_file, settings))
    shared = load_spec(toy_file, {**settings, "trainer.accelerator": "gpu"})
    study = run_to_tables(tmp_path / "gpu", shared, Local(shared, workers=2))
    assert {result["provenance"]["device"].partition(":")[0] for result in study.state.results.values()} == {"cuda"}
    found = scores(tmp_path / "gpu")
    assert found == pytest.approx(scores(tmp_path / "cpu"), abs=5e-3)  # a rounded similarity may change places
