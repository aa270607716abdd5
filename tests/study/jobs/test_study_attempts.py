"""A job that memory does not suffice for, or that processes die over, holds up no other and is not passed over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from study_process import StudyProcess
from toy_study import run_study

from levelfield.cli.main import main
from levelfield.errors import UserError
from levelfield.storage.ledger import Ledger
from levelfield.study.definition.study_file import load_spec
from levelfield.study.execution.worker import _Worker
from levelfield.study.jobs.attempts import Attempts
from levelfield.study.jobs import Job
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord
from levelfield.study.run import begin

OWN_LOSSES = '''
import os
import signal
from pathlib import Path

import torch
from torch import nn


class Plain(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.square().sum()


class Greedy(Plain):
    """Too large for the memory in its first `times` attempts, of which one is the look before the study begins."""

    def __init__(self, times: int = 2) -> None:
        super().__init__()
        self.times = times

    def forward(self, embeddings, labels):
        with open("attempts.log", "a") as log:
            print("attempt", file=log)
        if len(Path("attempts.log").read_text().splitlines()) <= self.times:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().forward(embeddings, labels)


class Deadly(Plain):
    """The system ends a process that computes it, as it does one that takes too much memory."""

    def forward(self, embeddings, labels):
        os.kill(os.getpid(), signal.SIGKILL)


class Wrong(Plain):
    def forward(self, embeddings, labels):
        raise ValueError("a mistake in a loss of one's own")
'''
# Takes the lock of a job and dies.
DIES = """
import os, sys
from pathlib import Path
from levelfield.storage.lock import Lock
Lock(Path(sys.argv[1]), sys.argv[2], "a job").acquire()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def desk(toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with losses of one's own, and a study of each beside a plain one: 2 folds, 1 run."""
    name = f"own_losses_{tmp_path.name}"  # a module is imported once
    (tmp_path / f"{name}.py").write_text(OWN_LOSSES)
    content = yaml.safe_load(toy_file.read_text())
    content |= {"spaces": {}, "search": {}, "runs": 1}
    for loss in ("Greedy", "Deadly", "Wrong", "Plain"):
        content["methods"] = {
            kind.lower(): {"model": {"loss": {"class_path": f"{name}.{kind}"}}} for kind in (loss, "Plain")
        }
        (tmp_path / f"{loss}.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def results(folder: Path, method: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"jobs/{method}/run0/fold?/result.json"))]


def test_memory_that_is_short_for_a_moment_fails_no_run(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "run", "Greedy.yaml", "--output", "out"]) == 0
    first, second = results(desk / "out", "greedy")
    (reason,) = first["earlier_attempts"]
    assert reason.startswith("out of memory (CUDA out of memory. Tried to allocate 20.00 GiB.)")
    assert "failure" not in first
    assert "earlier_attempts" not in second
    assert not list(desk.glob("out/attempts/**/*.json"))
    assert "it is tried again with no other job beside it" in capsys.readouterr().out


def test_the_test_classes_stay_sealed_while_a_run_is_missing(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = yaml.safe_load(Path("Greedy.yaml").read_text())
    # The look, the first attempts at both folds, and the second at the first.
    content["methods"]["greedy"]["model"]["loss"]["init_args"] = {"times": 4}
    Path("Greedy.yaml").write_text(yaml.safe_dump(content))
    words = ["study", "run", "Greedy.yaml", "--output", "out"]
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("levelfield: greedy run 0 fold 0 failed (out of memory (CUDA out of memory. Tried to")
    assert "twice, the second time with no other job beside it" in error
    assert "the test classes stay sealed while a run is missing" in error
    assert error.endswith(
        "delete out/jobs/greedy/run0/fold0/result.json and resume to try it again, or leave out what failed by "
        "--test-without-failed-runs"
    )
    assert Ledger(desk / "out").entries() == []
    assert len(results(desk / "out", "plain")) == 2

    assert main([*words, "--test-without-failed-runs"]) == 0
    assert "greedy run 0 fold 0 failed and is left out with its run" in capsys.readouterr().out
    assert len(Ledger(desk / "out").openings) == 1


def test_a_job_that_processes_die_over_comes_last_and_is_given_up(desk: Path) -> None:
    folder, spec, job = desk / "out", load_spec(desk / "Plain.yaml"), Job("plain", "run", 0, 0)
    record = StudyRecord(folder, spec)
    begin(record)
    worker = _Worker(record, StudyProgress(Console(quiet=True), "study", record.state, {}), 30.0, keeper=None)
    for deaths in (1, 2, 3):
        subprocess.run([sys.executable, "-c", DIES, str(folder), "plain/run0/fold0"], check=False)
        assert not worker._attempt(job), "another job is tried first"
        attempts = Attempts.of(folder, job)
        assert (attempts.deaths, attempts.alone) == (deaths, deaths > 1)
    with pytest.raises(UserError, match=r"plain run 0 fold 0: 3 processes died over it") as refused:
        run_study(folder, spec)
    remedy = f"delete {folder}/attempts/plain/run0/fold0.json and resume"
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(results(folder, "plain")) == 1
    (folder / "attempts/plain/run0/fold0.json").unlink()
    run_study(folder, spec)
    assert len(results(folder, "plain")) == 2


def test_a_step_forward_begins_the_count_again(tmp_path: Path) -> None:
    attempts, last = Attempts(tmp_path / "attempts.json"), tmp_path / "last.ckpt"
    for deaths in (1, 2):
        attempts.note_death(tmp_path, among_others=True)
        assert attempts.deaths == deaths
    last.write_text("the state after an epoch")
    attempts.note_death(tmp_path, among_others=True)
    assert attempts.deaths == 1
    attempts.note_death(tmp_path, among_others=True)
    assert attempts.deaths == 2


@pytest.mark.full
@pytest.mark.processes
def test_a_study_of_one_process_that_is_killed_over_a_job_does_the_others(desk: Path) -> None:
    codes = []
    while len(codes) < 12 and 2 not in codes:
        study = StudyProcess(["study", "run", "Deadly.yaml", "--output", "out"], desk / "log", desk)
        printed = study.wait()
        codes.append(study.exit_code)
    assert codes == [*[-9] * 6, 2]
    assert "deadly run 0 fold 0: 3 processes died over it" in printed.splitlines()[-1]
    assert len(results(desk / "out", "plain")) == 2
    assert not (desk / "out/ledger.jsonl").exists()


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("Deadly", "deadly run 0 fold 0: 3 processes died over it, the last with no other job beside it"),
        ("Wrong", "wrong run 0 fold 0 ended with an error that is printed above (ValueError: a mistake in a loss of"),
    ],
)
def test_workers_go_on_with_other_jobs_and_end_in_one_line(loss: str, names: str, desk: Path) -> None:
    study = StudyProcess(
        ["study", "run", f"{loss}.yaml", "--output", "out", "--executor.workers=2"], desk / "log", desk
    )
    *lines, error = study.wait().splitlines()
    assert study.exit_code == 2, lines
    assert names in error
    assert "the results of the other jobs are kept; so for 1 more" in error
    assert any(line.endswith("another takes its place") for line in lines)
    assert len(results(desk / "out", "plain")) == 2
    assert results(desk / "out", loss.lower()) == []
    assert not (desk / "out/ledger.jsonl").exists()
