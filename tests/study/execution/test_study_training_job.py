"""A training that was killed goes on to the same bytes; one that fails says why."""

import csv
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from signal_at import SignalAt
from torch import Tensor, nn

from levelfield.errors import TrainingFailed, UserError
from levelfield.runtime.signals import Stopped
from levelfield.study.definition.configuration import merge
from levelfield.study.definition.spec import StudySpec
from levelfield.study.execution import train as training_job
from levelfield.study.execution.train import train
from levelfield.study.jobs.job import Job
from levelfield.study.record import StudyRecord
from levelfield.training.build import build
from levelfield.training.callbacks.last_checkpoint import LAST

EARLY_STOPPING = {
    "class_path": "EarlyStopping",
    "init_args": {"monitor": "val/map_at_r", "mode": "max", "patience": 2, "min_delta": 1.0},
}
CASES: dict[str, dict[str, Any]] = {
    "contrastive": {},
    "class weights": {"model": {"loss": "ArcFaceLoss"}, "data": {"samples_per_class": 1, "num_workers": 1}},
    "memory": {
        "model": {
            "loss": {
                "class_path": "CrossBatchMemory",
                "init_args": {
                    "loss": {"class_path": "levelfield.losses.ContrastiveLoss"},
                    "memory_size": 40,
                },
            }
        }
    },
    "frozen trunk": {"model": {"freeze_trunk": True}},
    "features": {"model": {"freeze_trunk": True}, "data": {"features": True}},
    "schedule": {
        "model": {
            "freeze_batch_norm": False,
            "miner": "levelfield.miners.DistanceWeightedMiner",
            "loss": "TripletMarginLoss",
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}},
            "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1}},
        }
    },
    "validations within an epoch": {
        "data": {"steps_per_epoch": 4, "num_workers": 1},
        "trainer": {"val_check_interval": 0.5, "max_epochs": 2},
    },
    "accumulated gradients": {
        "data": {"steps_per_epoch": 4},
        "trainer": {"accumulate_grad_batches": 2},
    },
    "chunks": {"model": {"chunk_size": 3, "embedder": {"class_path": "MLPEmbedder", "init_args": {"dropout": 0.2}}}},
    "a number of steps": {"trainer": {"max_steps": 8, "max_epochs": -1}},
    "early stopping": {
        "trainer": {"max_epochs": 20, "check_val_every_n_epoch": 2, "callbacks": [EARLY_STOPPING]},
    },
}
USUAL = (
    "class weights",
    "memory",
    "features",
    "validations within an epoch",
)  # of them in `make test`; the others in `make test-full`


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))


class KilledError(Exception):
    pass


JOB = Job("contrastive", "run", 0, 0)


def config_of(spec: StudySpec, changes: dict[str, Any]) -> dict[str, Any]:
    of_the_job = {"data": {"fold": 0, "num_folds": 2}, "trainer": {"max_epochs": 4}, "seed_everything": 7}
    return merge(merge(spec.methods[JOB.method], of_the_job), changes)


def ignore(*_: Any) -> None:
    pass


def at_step(number: int) -> Callable[[int, int], None]:
    def raise_there(step: int, steps: int) -> None:
        if step == number:
            raise KilledError

    return raise_there


def killed_at(step: int, folder: Path, spec: StudySpec, config: dict[str, Any], seconds: float = 0.0) -> None:
    with pytest.raises(KilledError):
        train(StudyRecord(folder, spec), JOB, config, at_step(step), checkpoint_seconds=seconds)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / JOB.path).iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in USUAL else pytest.mark.full) for case in CASES]
)
def test_a_training_stopped_anywhere_goes_on_to_the_same_bytes(case: str, spec: StudySpec, tmp_path: Path) -> None:
    config = config_of(spec, CASES[case])
    undisturbed = train(StudyRecord(tmp_path / "undisturbed", spec), JOB, config, ignore)
    folder = tmp_path / "killed"
    seen = []
    for step in (3, 6):
        killed_at(step, folder, spec, config)
    result = train(
        StudyRecord(folder, spec), JOB, config, lambda step, steps: seen.append((step, steps)), checkpoint_seconds=0
    )
    last = 12 if case == "early stopping" else 8
    first = 5 if case == "accumulated gradients" else 6  # the second batch of step 5 makes it
    assert sorted({step for step, _ in seen}) == list(range(first, last + 1)), "it went on from within an epoch"
    assert contents(folder) == contents(tmp_path / "undisturbed")
    for key in ("validation", "best_epoch", "data"):
        assert result[key] == undisturbed[key]


@pytest.mark.parametrize(
    ("case", "step", "in_validation", "number", "next_step"),
    [
        ("contrastive", 1, False, signal.SIGTERM, 2),  # a checkpoint between two steps
        ("contrastive", 2, False, signal.SIGUSR1, 3),  # the step before a validation
        ("memory", 4, True, signal.SIGUSR2, 5),
        ("class weights", 3, False, signal.SIGUSR1, 4),
        ("schedule", 4, True, signal.SIGTERM, 5),
        ("contrastive", 8, True, signal.SIGTERM, None),
        ("validations within an epoch", 2, True, signal.SIGTERM, 3),
        ("accumulated gradients", 1, False, signal.SIGTERM, 1),
        ("early stopping", 2, False, signal.SIGUSR1, 3),
    ],
)
def test_a_signal_ends_the_step_and_loses_nothing(
    case: str,
    step: int,
    in_validation: bool,
    number: int,
    next_step: int | None,
    spec: StudySpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = merge(config_of(spec, CASES[case]), {"data": {"eval_batch_size": 32}})
    train(StudyRecord(tmp_path / "undisturbed", spec), JOB, config, ignore)
    folder = tmp_path / "stopped"
    arguments = {"step": step, "in_validation": in_validation, "number": int(number)}
    callbacks = [{"class_path": "signal_at.SignalAt", "init_args": arguments}]
    config["trainer"]["callbacks"] = [*callbacks, *config["trainer"].get("callbacks", [])]
    monkeypatch.setattr(SignalAt, "sent", False)
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stop:
        train(StudyRecord(folder, spec), JOB, config, ignore, checkpoint_seconds=1e9)
    assert (stop.value.number, stop.value.code) == (number, 75)
    assert signal.getsignal(number) == before
    seen: list[int] = []
    train(StudyRecord(folder, spec), JOB, config, lambda step, steps: seen.append(step), checkpoint_seconds=1e9)
    assert seen[:1] == ([] if next_step is None else [next_step])
    found, expected = contents(folder), contents(tmp_path / "undisturbed")
    assert found.keys() == expected.keys()
    assert all(found[name] == expected[name] for name in ("best.ckpt", "metrics.csv"))


def epoch_of(path: Path) -> int:
    return torch.load(path, weights_only=True)["epoch"]


def test_a_moved_folder_and_a_best_checkpoint_newer_than_the_last_change_no_byte(
    spec: StudySpec, tmp_path: Path
) -> None:
    config = config_of(spec, {"model": {"freeze_batch_norm": False}})
    train(StudyRecord(tmp_path / "undisturbed", spec), JOB, config, ignore)
    here, there = tmp_path / "here", tmp_path / "there"
    killed_at(3, here, spec, config)
    killed_at(5, here, spec, config, seconds=1e9)
    assert epoch_of(here / JOB.path / "best.ckpt") > epoch_of(here / JOB.path / LAST) == 0
    (here / JOB.path / ".last.ckpt.tmp").write_bytes(b"half a checkp")
    here.rename(there)
    train(StudyRecord(there, spec), JOB, config, ignore)
    assert contents(there) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("stops_early", [False, True])
def test_a_training_killed_between_its_last_epoch_and_its_end_takes_no_further_step(
    stops_early: bool, spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(spec, {"trainer": {"callbacks": [EARLY_STOPPING]}} if stops_early else {})
    undisturbed = train(StudyRecord(tmp_path / "undisturbed", spec), JOB, config, ignore)
    with monkeypatch.context() as patch:
        patch.setattr(training_job, "provenance", lambda *of: at_step(0)(0, 0))
        killed_at(-1, tmp_path / "killed", spec, config)
    seen: list[int] = []
    result = train(StudyRecord(tmp_path / "killed", spec), JOB, config, lambda step, steps: seen.append(step))
    assert seen == []
    assert result["validation"] == undisturbed["validation"]
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")


@pytest.mark.full  # test_fit_resume.py has the like of a fit
def test_a_checkpoint_of_lightning_in_the_working_directory_changes_nothing(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(StudyRecord(tmp_path / "clean", spec), JOB, config_of(spec, {}), ignore)
    killed_at(3, tmp_path / "other", spec, config_of(spec, {"data": {"fold": 1}}))
    for name in ("JOB_ID", "PROCID", "LOCALID", "NODEID", "NTASKS"):  # Lightning looks for it under SLURM
        monkeypatch.setenv(f"SLURM_{name}", "1" if name == "NTASKS" else "0")
    monkeypatch.chdir(tmp_path)
    shutil.copy(tmp_path / "other" / JOB.path / LAST, "hpc_ckpt_1.ckpt")
    train(StudyRecord(tmp_path / "planted", spec), JOB, config_of(spec, {}), ignore)
    assert contents(tmp_path / "planted") == contents(tmp_path / "clean")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "torn last": lambda folder: torn(folder / LAST),
    "a bit of the last": lambda folder: one_bit(folder / LAST),
    "a bit of the best": lambda folder: one_bit(folder / "best.ckpt"),
    "no best": lambda folder: (folder / "best.ckpt").unlink(),
    "another file": lambda folder: shutil.copy(folder / "best.ckpt", folder / LAST),
}


def test_a_damaged_checkpoint_or_one_of_another_training_means_beginning_again(spec: StudySpec, tmp_path: Path) -> None:
    config = config_of(spec, {})
    killed = tmp_path / "killed"
    killed_at(3, killed, spec, config)
    (killed / JOB.path / "stray").touch()
    others = {
        "the same": config,
        "elsewhere": merge(config, {"data": {"root": "elsewhere", "num_workers": 0}}),
        "another margin": merge(config, {"model": {"embedder_lr": 0.1}}),
        "another data set": merge(config, {"data": {"dataset": {"init_args": {"num_classes": 33}}}}),
    }
    for name in [*DAMAGES, *others]:
        folder = Path(shutil.copytree(killed, tmp_path / name))
        DAMAGES.get(name, ignore)(folder / JOB.path)
        seen: list[int] = []

        def stop(step: int, steps: int, seen: list[int] = seen) -> None:
            seen.append(step)
            raise KilledError

        with pytest.raises(KilledError):
            train(StudyRecord(folder, spec), JOB, others.get(name, config), stop)
        goes_on = name in ("the same", "elsewhere")
        assert seen == [3 if goes_on else 1], name
        assert (folder / JOB.path / "stray").exists() == goes_on, name


class Faulty(nn.Module):
    """A loss that goes wrong at one step."""

    def __init__(self, step: int, fault: str) -> None:
        super().__init__()
        self.init_args = {"step": step, "fault": fault}
        self.step, self.fault, self.calls = step, fault, 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = embeddings.square().sum()
        if self.calls == self.step:
            if self.fault == "a NaN that leaves no trace":
                loss = loss + float("nan")
            if self.fault == "a gradient that is not finite":
                loss = loss + (embeddings * 0).sum().sqrt()
            if self.fault == "no memory for a tensor":
                torch.empty(2**50)
            if self.fault == "no memory for Python":
                bytearray(2**60)
            if self.fault == "no memory for cuBLAS":
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        self.calls += 1
        return loss


@pytest.mark.parametrize(
    ("fault", "step", "reason"),
    [
        ("a NaN that leaves no trace", 2, "the loss is nan at step 2: lower the learning rates"),
        ("a NaN that leaves no trace", 3, "the loss is nan at step 3: lower the learning rates"),
        ("a gradient that is not finite", 3, "the embeddings are not finite: lower the learning rates"),
        ("no memory for a tensor", 2, r"out of memory \(.*1125899906842624|out of memory \(.*allocate"),
        ("no memory for Python", 2, r"out of memory \(MemoryError\): lower --data.batch_size"),
        ("no memory for cuBLAS", 2, r"out of memory \(CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
    ],
)
def test_a_training_that_fails_says_why_in_one_line_and_leaves_no_checkpoint(
    fault: str, step: int, reason: str, spec: StudySpec, tmp_path: Path
) -> None:
    loss = {"class_path": f"{__name__}.Faulty", "init_args": {"step": step, "fault": fault}}
    config = config_of(spec, {"model": {"loss": loss}, "trainer": {"max_epochs": 3, "log_every_n_steps": 50}})
    with pytest.raises(TrainingFailed, match=reason) as failure:
        train(StudyRecord(tmp_path, spec), JOB, config, ignore, checkpoint_seconds=0)
    assert "\n" not in str(failure.value)
    assert not list((tmp_path / JOB.path).glob("*.ckpt"))


def test_a_mistake_of_the_user_is_no_failed_training(spec: StudySpec, tmp_path: Path) -> None:
    config = config_of(spec, {"data": {"batch_size": 18}})
    with pytest.raises(UserError, match="batch_size 18 is not a multiple") as mistake:
        train(StudyRecord(tmp_path, spec), JOB, config, ignore)
    assert not isinstance(mistake.value, TrainingFailed)


def test_patience_counts_evaluations_not_epochs(spec: StudySpec, tmp_path: Path) -> None:
    # min_delta 1 can never be reached after the first evaluation, at the end of epoch 1: 5 more end in epoch 11.
    stopping = {"class_path": "EarlyStopping", "init_args": {**EARLY_STOPPING["init_args"], "patience": 5}}
    trainer = {"max_epochs": 40, "check_val_every_n_epoch": 2, "callbacks": [stopping]}
    config = config_of(spec, {"trainer": trainer, "data": {"steps_per_epoch": 1}})
    training = build(config, tmp_path, progress=False)
    assert any(isinstance(callback, EarlyStopping) for callback in training.trainer.callbacks)  # type: ignore[attr-defined]
    training.trainer.fit(training.model, datamodule=training.datamodule)
    with open(tmp_path / "metrics.csv", newline="") as file:
        evaluated = [int(row["epoch"]) for row in csv.DictReader(file) if row["val/map_at_r"]]
    assert evaluated == [1, 3, 5, 7, 9, 11]
    assert training.trainer.current_epoch == 12


@pytest.mark.full
def test_trackers_come_along(spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": {"offline": True, "project": "p"}}
    board = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": {"save_dir": "elsewhere"}}
    config = config_of(spec, {"trainer": {"logger": [wandb, board]}})
    killed_at(3, tmp_path / "tracked", spec, config)
    train(StudyRecord(tmp_path / "tracked", spec), JOB, config, ignore)
    train(StudyRecord(tmp_path / "plain", spec), JOB, config_of(spec, {}), ignore)
    tracked, plain = contents(tmp_path / "tracked"), contents(tmp_path / "plain")
    assert all(tracked[name] == plain[name] for name in ("best.ckpt", "metrics.csv"))


PROGRAM = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[1])
from test_study_training_job import CASES, JOB, config_of
from levelfield.study.definition.study_file import load_spec
from levelfield.study.execution.train import train
from levelfield.study.record import StudyRecord

torch.set_num_threads(1)
spec = load_spec(Path(sys.argv[2]))
config = config_of(spec, CASES[sys.argv[4]])
train(StudyRecord(Path(sys.argv[3]), spec), JOB, config, lambda step, _: print(step, flush=True), checkpoint_seconds=0)
print("done", flush=True)
"""


def killed_after(step: str, command: list[str], delay: float) -> list[str]:
    """The lines of a process that gets a SIGKILL some seconds after it printed `step`."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.strip() == step:
                time.sleep(delay)
                process.kill()
    return lines


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_sigkills_at_several_epochs_change_no_byte(case: str, spec: StudySpec, toy_file: Path, tmp_path: Path) -> None:
    train(StudyRecord(tmp_path / "undisturbed", spec), JOB, config_of(spec, CASES[case]), ignore)
    folders = [str(Path(__file__).parents[2]), str(toy_file), str(tmp_path / "killed")]
    command = [sys.executable, "-c", PROGRAM, *folders, case]
    delays = random.Random(case)
    for step in ("1", "4", "6"):
        assert "done" not in killed_after(step, command, delays.uniform(0, 0.1))
    assert killed_after("never", command, 0)[-1] == "done"
    assert contents(tmp_path / "killed") == contents(tmp_path / "undisturbed")


def test_a_training_begun_with_other_code_of_ones_own_begins_anew(spec: StudySpec, tmp_path: Path) -> None:
    config, seen = config_of(spec, {}), []
    begun = replace(spec, own_code={JOB.method: {"my_loss.py": "0" * 64}})
    killed_at(3, tmp_path, begun, config)
    train(StudyRecord(tmp_path, spec), JOB, config, lambda step, steps: seen.append(step))
    assert seen[0] == 1
