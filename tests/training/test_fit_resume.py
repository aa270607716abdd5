"""A fit that a signal, a requeue or a kill stopped goes on to the bytes of one that was left alone."""

import csv
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from refused import refused
from signal_at import SignalAt
from study_process import StudyProcess
from tiny_fit import TINY
from torch.utils.data import DataLoader

from levelfield.runtime.signals import Stopped
from levelfield.training.interruption import interruptible

Run = Callable[..., tuple[int, str, str]]

# Two epochs of 4 steps, with a callback in each fit so that all have one configuration.
SETTINGS = """
trainer:
  log_every_n_steps: 1
  callbacks: {{class_path: signal_at.SignalAt, init_args: {{step: {step}, number: {number}}}}}
model: {{loss: ContrastiveLoss, embedding_size: 16}}
"""
FIT = Path("fit", "Glyphs-ContrastiveLoss")


def words(folder: Path, step: int, number: int) -> list[str]:
    file = folder.parent / f"settings_{step}_{number}.yaml"
    file.write_text(SETTINGS.format(step=step, number=int(number)))
    return ["fit", *TINY, "--config", str(file), "--output", str(folder)]


def same(folder: Path, undisturbed: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "config.yaml", "metrics.csv"]
    assert (folder / "metrics.csv").read_bytes() == (undisturbed / "metrics.csv").read_bytes()
    weights = [torch.load(path / "best.ckpt", weights_only=True)["state_dict"] for path in (folder, undisturbed)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def assert_stopped(code: int, complaint: str, number: signal.Signals, key: str = "--resume") -> None:
    """One line that names the signal and how the fit goes on."""
    assert (code, complaint.count("\n")) == (75, 1), complaint
    assert number.name in complaint
    assert key in complaint


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process as the only task of a SLURM job; the file that a fake `scontrol` notes its words in."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.txt\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    for name, value in {"JOB_ID": "4177", "JOB_NAME": "fit", "NTASKS": "1", "NTASKS_PER_NODE": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    return tmp_path / "scontrol.txt"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_stopped_fit_goes_on_with_resume(
    number: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {signal.SIGTERM: 2, signal.SIGUSR1: 4, signal.SIGUSR2: 7}[signal.Signals(number)]
    monkeypatch.setattr(SignalAt, "sent", True)
    assert run(*words(tmp_path / "undisturbed", step, number))[0] == 0
    monkeypatch.setattr(SignalAt, "sent", False)
    code, printed, complaint = run(*words(tmp_path / "stopped", step, number), "--resume")
    assert_stopped(code, complaint, signal.Signals(number))
    folder = tmp_path / "stopped" / FIT
    assert any(line.startswith("note: ") and line.endswith(str(folder)) for line in printed.splitlines())
    assert (folder / "0" / "last.ckpt").exists()
    code, printed, complaint = run(*words(tmp_path / "stopped", step, number), "--resume")
    assert code == 0, complaint
    assert str(folder / "0") in printed
    same(folder / "0", tmp_path / "undisturbed" / FIT / "0")
    before = (folder / "0" / "best.ckpt").stat().st_mtime_ns
    assert run(*words(tmp_path / "stopped", step, number), "--resume")[0] == 0
    assert (folder / "0" / "best.ckpt").stat().st_mtime_ns == before
    assert [path.name for path in folder.iterdir()] == ["0"]


@pytest.mark.parametrize("step", [4, 6])
def test_a_stopped_fit_on_the_whole_half_goes_on_to_its_last_epoch(
    step: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ["--data.fold", "none"]
    monkeypatch.setattr(SignalAt, "sent", True)
    assert run(*words(tmp_path / "undisturbed", step, signal.SIGTERM), *whole)[0] == 0
    monkeypatch.setattr(SignalAt, "sent", False)
    assert run(*words(tmp_path / "stopped", step, signal.SIGTERM), *whole)[0] == 75
    code, _, complaint = run(*words(tmp_path / "stopped", step, signal.SIGTERM), *whole, "--resume")
    assert code == 0, complaint
    same(tmp_path / "stopped" / FIT / "0", tmp_path / "undisturbed" / FIT / "0")


def test_a_requeued_job_goes_on_by_itself(
    slurm: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SignalAt, "sent", False)
    code, _, complaint = run(*words(tmp_path / "stopped", 3, signal.SIGUSR1))
    assert_stopped(code, complaint, signal.SIGUSR1, "4177")
    assert slurm.read_text() == "requeue 4177\n"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, _, complaint = run(*words(tmp_path / "stopped", 3, signal.SIGUSR1))
    assert code == 0, complaint
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    assert run(*words(tmp_path / "undisturbed", 3, signal.SIGUSR1))[0] == 0
    same(tmp_path / "stopped" / FIT / "0", tmp_path / "undisturbed" / FIT / "0")
    # Requeued once more, after its end: nothing begins anew.
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    before = (tmp_path / "stopped" / FIT / "0" / "best.ckpt").stat().st_mtime_ns
    assert run(*words(tmp_path / "stopped", 3, signal.SIGUSR1))[0] == 0
    assert (tmp_path / "stopped" / FIT / "0" / "best.ckpt").stat().st_mtime_ns == before


def test_a_preempted_or_cancelled_job_is_not_requeued_by_itself(
    slurm: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SignalAt, "sent", False)
    code, _, complaint = run(*words(tmp_path / "stopped", 3, signal.SIGTERM))
    assert_stopped(code, complaint, signal.SIGTERM)
    assert not slurm.exists()


def test_a_checkpoint_of_lightning_in_the_working_directory_changes_nothing(
    slurm: Path, fitted: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--data.dataset.num_classes", "32", "--data.steps_per_epoch", "2", "--model.loss", "ArcFaceLoss"]
    scores, printed = [], []
    for name in ("clean", "planted"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        if name == "planted":  # of fold 2, whose validation classes the other fit trains on
            (folder / "hpc_ckpt_1.ckpt").write_bytes((fitted / "best.ckpt").read_bytes())
        code, _, complaint = run("fit", *TINY, *options, "--name", "one")
        assert code == 0, complaint
        checkpoint = folder / "outputs" / "fit" / "one" / "0" / "best.ckpt"
        with open(checkpoint.with_name("metrics.csv")) as file:
            scores.append([row["val/map_at_r"] for row in csv.DictReader(file)])
        code, text, complaint = run("validate", "--ckpt_path", checkpoint)
        assert code == 0, complaint
        printed.append(text)
        assert [path.name for path in folder.glob("*.ckpt")] == ["hpc_ckpt_1.ckpt"][: name == "planted"]
    assert scores[0] == scores[1]
    assert printed[0] == printed[1]
    monkeypatch.chdir(checkpoint.parent)
    (checkpoint.parent / "hpc_ckpt_1.ckpt").write_bytes((fitted / "best.ckpt").read_bytes())
    assert run("validate", "--ckpt_path", "best.ckpt")[1] == printed[0]


def test_a_last_state_of_other_code_or_a_torn_one_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SignalAt, "sent", False)
    command = words(tmp_path / "stopped", 3, signal.SIGTERM)
    assert run(*command)[0] == 75
    last = tmp_path / "stopped" / FIT / "0" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    content["job"]["identity"]["files"] = "others"
    torch.save(content, last)
    refused(run(*command, "--resume"), str(last), "files")
    last.write_bytes(last.read_bytes()[:-100])
    refused(run(*command, "--resume"), str(last))


@pytest.mark.processes
def test_signals_from_outside_stop_a_fit_and_change_no_byte(tmp_path: Path) -> None:
    def command(folder: str) -> list[str]:
        settings = words(tmp_path / folder, -1, signal.SIGTERM)
        return [*settings, "--data.steps_per_epoch", "20", "--trainer.max_epochs", "4"]

    folder = tmp_path / "stopped" / FIT / "0"
    # In the second epoch; and as soon as the rows of before are back.
    for number, moment in ((signal.SIGUSR1, "best.ckpt"), (signal.SIGTERM, "metrics.csv")):
        (folder / "metrics.csv").unlink(missing_ok=True)
        process = StudyProcess([*command("stopped"), "--resume"], tmp_path / f"{number.name}.log")
        deadline = time.monotonic() + 120
        while not (folder / moment).exists():
            assert process.exit_code is None, process.wait()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.signal(number)
        printed = process.wait(60)
        assert_stopped(process.exit_code, f"{printed.splitlines()[-1]}\n", number)
        assert (folder / "last.ckpt").exists()
    last = StudyProcess([*command("stopped"), "--resume"], tmp_path / "last.log")
    undisturbed = StudyProcess(command("undisturbed"), tmp_path / "undisturbed.log")
    for process in (last, undisturbed):
        printed = process.wait(120)
        assert process.exit_code == 0, printed
    same(folder, tmp_path / "undisturbed" / FIT / "0")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("stop", [Stopped(signal.SIGTERM), KeyboardInterrupt()])
def test_a_signal_while_the_loaders_start_is_that_signal(stop: BaseException, tmp_path: Path) -> None:
    """Lightning's teardown asks them how long they are, and fails because they have not started."""

    class NotStarted(DataLoader):
        def __iter__(self) -> Any:
            raise stop

    trainer = Trainer(default_root_dir=tmp_path, accelerator="cpu", logger=False, max_epochs=1)
    loader = NotStarted(RandomDataset(32, 8))
    with pytest.raises(type(stop)), interruptible(trainer):
        trainer.fit(BoringModel(), loader)
