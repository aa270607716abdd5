"""A fit that is killed in its third epoch and resumed ends in the weights and rows of one that was left alone."""

import csv
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
import yaml
from forked import Forked, children, levelfield, python, torchrun
from kill_at import KILL, Killed
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from refused import refused, succeeded
from tiny_fit import REPOSITORY, TINY
from torch.utils.data import DataLoader

from levelfield.cli.main import main
from levelfield.core.processes import interrupt_at_signals
from levelfield.training.run_folder import interruptible

Run = Callable[..., tuple[int, str, str]]

OURS, LIGHTNING = "levelfield.training.callbacks", "lightning.pytorch.callbacks"
STOP = {"monitor": "val/map_at_r", "mode": "max"}
BASE: dict[str, Any] = {
    "trainer": {"max_epochs": 3, "log_every_n_steps": 1, "callbacks": [{"class_path": "kill_at.KillAt"}]},
    "model": {"loss": "ArcFaceLoss", "embedding_size": 16, "embedder_lr": 0.01},
    "data": {"eval_batch_size": 20},
}


def callback(path: str, **arguments: Any) -> dict[str, Any]:
    return {"trainer": {"callbacks+": {"class_path": path, "init_args": arguments}}}


def trainer(**arguments: Any) -> dict[str, Any]:
    return {"trainer": arguments}


def model(**arguments: Any) -> dict[str, Any]:
    return {"model": arguments}


def schedule(**arguments: Any) -> dict[str, Any]:
    return model(lr_scheduler={"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": arguments})


STILL = model(embedder_lr=0.0, trunk_lr=0.0)
DRAWS = [model(loss="TripletMarginLoss"), model(loss={"triplets_per_anchor": 2})]
FROZEN = [model(freeze_trunk=True), {"data": {"features": True}}]
DUE = [callback(f"{LIGHTNING}.EarlyStopping", **STOP, patience=1), trainer(max_epochs=6, min_epochs=4), STILL]
OF_EPOCHS = callback(f"{LIGHTNING}.EMAWeightAveraging", decay=0.5, update_every_n_steps=0, update_starting_at_epoch=0)
CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "plain": ([], "1 1 validation"),
    "max_steps, a validation every 2 epochs, accumulated gradients": (
        [trainer(max_epochs=-1, max_steps=7, check_val_every_n_epoch=2, accumulate_grad_batches=3)], "2 1",
    ),
    "two validations an epoch, a plateau schedule": (
        [trainer(val_check_interval=0.5), model(learner="kill_at.PlateauLearner"), STILL], "1 2",
    ),
    "limit_train_batches, a schedule of steps, a loss that draws": (
        [trainer(limit_train_batches=3), schedule(step_size=3), model(lr_scheduler_interval="step"), *DRAWS], "1 0",
    ),
    "ValidateFirst, early stopping due, min_epochs not reached": (
        [callback(f"{OURS}.ValidateFirst"), *DUE, model(embedder_init="pca"), trainer(log_every_n_steps=3)], "2 1",
    ),
    "HeadFirst, EMA of steps": (
        [callback(f"{OURS}.HeadFirst", epochs=2), callback(f"{LIGHTNING}.EMAWeightAveraging", decay=0.9)], "1 1",
    ),
    "EMA of epochs, features": ([OF_EPOCHS, *FROZEN], "1 1 validation"),
    "a schedule of epochs": ([schedule(step_size=2)], "1 1 validation"),
    "UntilDone": (
        [callback(f"{OURS}.UntilDone", first=4, every=8, patience=2), trainer(max_epochs=30), STILL], "2 1",
    ),
    "a LightningModule that knows nothing of levelfield": ([model(learner="plain_module.Plain", width=8)], "1 1"),
    "from the weights of a checkpoint": ([trainer(max_epochs=2)], "1 1"),
    "SIGKILL, two loader processes": ([{"data": {"num_workers": 2}}], "1 1 SIGKILL"),
    "SIGKILL in a validation, with max_steps": ([trainer(max_steps=10)], "1 1 validation SIGKILL"),
}  # fmt: skip
FULL = pytest.mark.full
MARKS = {8: FULL, 11: pytest.mark.processes, 12: [pytest.mark.processes, FULL]}
PARAMETERS = [pytest.param(case, marks=MARKS.get(place, ())) for place, case in enumerate(CASES)]


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fit that nothing disturbs. Its data's number of loader processes is no setting."""
    folder = tmp_path_factory.mktemp("plain")
    assert main(words(folder, "whole", [])) == 0
    return folder / "fit/whole/0"


def words(folder: Path, name: str, changes: list[dict[str, Any]]) -> list[str]:
    files = []
    for number, layer in enumerate([BASE, *changes]):
        files.append(folder / f"layer_{number}.yaml")
        files[-1].write_text(yaml.safe_dump(layer))
    layers = [word for file in files for word in ("--config", str(file))]
    few = ["--data.dataset.num_classes", "24", "--checkpoint_seconds", "0"]
    return ["fit", *TINY, *layers, *few, "--output", str(folder), "--name", name]


def equal(one: Any, other: Any) -> bool:
    """Whether two nested states are the same, to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def read(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def same(killed: Path, whole: Path) -> None:
    assert {path.name for path in killed.iterdir()} == {"best.ckpt", "config.yaml", "end.pt", "metrics.csv"}
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert equal(read(killed / "end.pt"), read(whole / "end.pt"))
    one, other = (read(folder / "best.ckpt") for folder in (killed, whole))
    assert all(equal(one[key], other[key]) for key in ("epoch", "global_step", "state_dict"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
@pytest.mark.parametrize("case", PARAMETERS)
def test_a_killed_fit_ends_as_one_that_was_left_alone(case, plain, run, tmp_path, monkeypatch):
    changes, moment = CASES[case]
    start = ["--ckpt_path", str(plain / "best.ckpt")] if case.startswith("from") else []
    whole = plain if case in ("plain", "SIGKILL, two loader processes") else tmp_path / "fit/whole/0"
    if whole != plain:
        succeeded(run(*words(tmp_path, "whole", changes), *start))
    killed = [*words(tmp_path, "killed", changes), *start]
    if moment.endswith("SIGKILL"):
        assert python(*levelfield(*killed), **{KILL: moment}).returncode == -signal.SIGKILL
    else:
        for each in [moment, *(["2 1"] if case == "plain" else [])]:
            monkeypatch.setenv(KILL, each)
            with pytest.raises(Killed):
                run(*killed, "--resume")
        monkeypatch.delenv(KILL)
    assert (tmp_path / "fit/killed/0/last.ckpt").exists()
    for _ in range(2 if case == "plain" else 1):  # a finished fit is left alone
        assert str(tmp_path / "fit/killed/0") in succeeded(run(*killed, "--resume"))
        assert [path.name for path in (tmp_path / "fit/killed").iterdir()] == ["0"]
        same(tmp_path / "fit/killed/0", whole)


TWO = [trainer(accelerator="cpu", devices=2, strategy="ddp")]


@pytest.mark.processes
def test_two_processes_are_killed_and_resume_in_one_folder(tmp_path: Path) -> None:
    def fit(name: str, *more: str, **environment: str) -> list[CompletedProcess[str]]:
        return torchrun(*levelfield(*words(tmp_path, name, TWO), *more), **environment)

    whole, killed = fit("whole"), fit("killed", **{KILL: "1 1 SIGKILL"})
    assert [done.returncode for done in whole] == [0, 0], whole
    assert killed[0].returncode == -signal.SIGKILL, killed
    resumed = fit("killed", "--resume")
    assert [done.returncode for done in resumed] == [0, 0], resumed
    assert sum(done.stdout.count("resuming in") for done in resumed) == 1
    assert [path.name for path in (tmp_path / "fit/killed").iterdir()] == ["0"]
    same(tmp_path / "fit/killed/0", tmp_path / "fit/whole/0")


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(("first", "then"), [([], TWO), (TWO, [])])
def test_a_fit_resumes_with_another_number_of_processes(first: list[Any], then: list[Any], tmp_path: Path) -> None:
    def curve(name: str, processes: list[Any], *more: str, **environment: str) -> list[float]:
        exact = trainer(accelerator="cpu", precision="64-true")  # float32 swaps near ties of a ranking
        done = python(*levelfield(*words(tmp_path, name, [exact, *processes]), *more), **environment)
        assert done.returncode == (-signal.SIGKILL if environment else 0), done.stderr
        with (tmp_path / "fit" / name / "0/metrics.csv").open() as lines:
            return [float(row["val/map_at_r"]) for row in csv.DictReader(lines) if row.get("val/map_at_r")]

    alone = curve("alone", [])
    curve("moved", first, **{KILL: "1 1 SIGKILL"})
    assert curve("moved", then, "--resume") == pytest.approx(alone, abs=5e-4)
    assert len(alone) == 3
    assert [path.name for path in (tmp_path / "fit/moved").iterdir()] == ["0"]


def assert_stopped(code: int, complaint: str, key: str = "--resume") -> None:
    """One line that says how to resume."""
    (line,) = complaint.strip().splitlines()
    assert (code, line.partition(";")[0]) == (130, "stopped")
    assert key in line


@pytest.mark.slow
def test_a_signal_ends_a_fit_at_once(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    command = [*words(tmp_path, "stopped", []), "--resume"]
    folder = tmp_path / "fit/stopped"
    monkeypatch.setenv(KILL, "0 1 SIGTERM")
    code, printed, complaint = run(*command)
    assert_stopped(code, complaint, "starts again")
    assert any(line.startswith("note: ") and f" {folder} " in line for line in printed.splitlines())
    assert not (folder / "0/last.ckpt").exists()
    monkeypatch.setenv(KILL, "1 1 SIGUSR2")
    code, _, complaint = run(*command)
    assert_stopped(code, complaint)
    assert read(folder / "1/last.ckpt")["global_step"] == 4
    monkeypatch.delenv(KILL)
    assert run(*command)[0] == 0
    assert read(folder / "1/end.pt")["steps"] == 12


def test_a_short_fit_stores_no_state(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(KILL, "1 1 SIGTERM")
    code, _, complaint = run(*words(tmp_path, "stopped", []), "--checkpoint_seconds", "3600")
    assert_stopped(code, complaint, "starts again")
    assert not (tmp_path / "fit/stopped/0/last.ckpt").exists()


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as the only task of a SLURM job."""
    for name, value in {"JOB_ID": "4177", "JOB_NAME": "fit", "NTASKS": "1", "NTASKS_PER_NODE": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")


@pytest.mark.slow
def test_a_checkpoint_of_lightning_in_the_working_directory_changes_nothing(
    slurm, plain, fitted, run, tmp_path, monkeypatch
):
    """It is of fold 2, whose validation classes the other fit trains on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes((fitted / "best.ckpt").read_bytes())
    succeeded(run(*words(tmp_path, "planted", [])))
    same(tmp_path / "fit/planted/0", plain)
    printed = [
        succeeded(run("validate", "--ckpt_path", path / "best.ckpt")) for path in (tmp_path / "fit/planted/0", plain)
    ]
    one, other = ([line for line in each.splitlines() if "val/" in line] for each in printed)
    assert one == other
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["hpc_ckpt_1.ckpt"]


def test_what_a_fit_cannot_resume_from_is_refused(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    command, last = [*words(tmp_path, "stopped", []), "--resume"], tmp_path / "fit/stopped/0/last.ckpt"
    monkeypatch.setenv(KILL, "1 1 SIGTERM")
    assert run(*command)[0] == 130
    stored, content = last.read_bytes(), read(last)
    last.write_bytes(stored[:-100])
    refused(run(*command), str(last.parent), "last.ckpt", "--resume")
    content["resume"]["identity"]["data"] = "others"
    torch.save(content, last)
    refused(run(*command), str(last.parent), "other data", "--resume")
    last.write_bytes(stored)
    last.with_name("best.ckpt").unlink()
    refused(run(*command), str(last.parent), "best.ckpt", "--resume")


@pytest.mark.processes
@pytest.mark.parametrize("who", ["a fit and its loaders", "two processes"])
def test_a_signal_to_several_processes_is_one_line(who: str, tmp_path: Path) -> None:
    two = who == "two processes"
    command = words(tmp_path, "stopped", [*(TWO if two else [{"data": {"num_workers": 2}}]), trainer(max_epochs=1000)])
    process = Forked(levelfield(*command), tmp_path / "log", group=two)
    process.wait_for((tmp_path / "fit/stopped/0/last.ckpt").exists)
    for each in [] if two else children(process.pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM) if two else process.signal(signal.SIGTERM)
    printed = process.wait(60)
    assert process.exit_code == 130, printed
    assert printed.count("stopped; ") == 1
    assert "--resume" in printed
    assert "Traceback" not in printed


def test_a_loader_process_that_ends_after_the_signal_is_not_an_error() -> None:
    """As when a cluster signals the whole group: torch raises an error wherever this process is, also in the line."""
    earlier = signal.getsignal(signal.SIGCHLD)
    batches = iter(DataLoader(RandomDataset(32, 8), num_workers=1))
    try:
        interrupt_at_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        (loader,) = batches._workers  # type: ignore[attr-defined]
        os.kill(loader.pid, signal.SIGKILL)
        os.waitid(os.P_PID, loader.pid, os.WEXITED | os.WNOWAIT)  # as joining would hide how it ended
    finally:
        signal.signal(signal.SIGCHLD, earlier)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_ctrl_c_while_the_loaders_start_is_ctrl_c(tmp_path: Path) -> None:
    """Lightning's teardown asks them how long they are, and fails because they have not started."""

    class NotStarted(DataLoader):
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    trainer = Trainer(default_root_dir=tmp_path, accelerator="cpu", logger=False, max_epochs=1)
    loader = NotStarted(RandomDataset(32, 8))
    with pytest.raises(KeyboardInterrupt), interruptible():
        trainer.fit(BoringModel(), loader)
