"""A fit writes into a folder of its own; killed and resumed there it ends in the weights and rows of one left alone."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
import yaml
from forked import Forked, children, levelfield, python, torchrun
from kill_at import KILL, Killed
from refused import refused, succeeded
from tiny_fit import REPOSITORY, TINY

from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.training.run_folder import RunFolder, claim

BASE: dict[str, Any] = {
    "trainer": {"max_epochs": 3, "log_every_n_steps": 1, "callbacks": [{"class_path": "kill_at.KillAt"}]},
    "model": {"loss": "ArcFaceLoss", "embedding_size": 16, "embedder_lr": 0.01},
    "data": {"eval_batch_size": 20},
}
STILL = "--model.embedder_lr 0 --model.trunk_lr 0"
BY_SCORE = "--trainer.callbacks.monitor val/map_at_r --trainer.callbacks.mode max"
EMA = "--trainer.callbacks+ EMAWeightAveraging --trainer.callbacks.decay"
OF_EPOCHS = "--trainer.callbacks.update_every_n_steps 0 --trainer.callbacks.update_starting_at_epoch 0"
STEP_LR = "--model.lr_scheduler torch.optim.lr_scheduler.StepLR --model.lr_scheduler.step_size"
DRAWS = "--model.loss TripletMarginLoss --model.loss.triplets_per_anchor 2"
UNTIL_DONE = "UntilDone --trainer.callbacks.first 4 --trainer.callbacks.every 8 --trainer.callbacks.patience 2"
CASES = {  # options, and when it is killed
    "plain": ("", "1 1 validation"),
    "max_steps, a validation every 2 epochs, accumulated gradients": (
        "--trainer.max_epochs -1 --trainer.max_steps 7 --trainer.check_val_every_n_epoch 2 "
        "--trainer.accumulate_grad_batches 3", "2 1",
    ),
    "two validations an epoch, a plateau schedule": (
        f"--trainer.val_check_interval 0.5 --model kill_at.PlateauLearner {STILL}", "1 2",
    ),
    "limit_train_batches, a schedule of steps, a loss that draws": (
        f"--trainer.limit_train_batches 3 {STEP_LR} 3 --model.lr_scheduler_interval step {DRAWS}", "1 0",
    ),
    "ValidateFirst, early stopping due, min_epochs not reached": (
        f"--trainer.callbacks+ ValidateFirst --trainer.callbacks+ EarlyStopping {BY_SCORE} "
        "--trainer.callbacks.patience 1 --trainer.max_epochs 6 --trainer.min_epochs 4 --trainer.log_every_n_steps 3 "
        f"--model.embedder_init pca {STILL}", "2 1",
    ),
    "HeadFirst, EMA of steps": (f"--trainer.callbacks+ HeadFirst --trainer.callbacks.epochs 2 {EMA} 0.9", "1 1"),
    "EMA of epochs, features": (
        f"{EMA} 0.5 {OF_EPOCHS} --model.freeze_trunk true --data.features true", "1 1 validation",
    ),
    "a schedule of epochs": (f"{STEP_LR} 2", "1 1 validation"),
    "UntilDone": (f"--trainer.callbacks+ {UNTIL_DONE} --trainer.max_epochs 30 {STILL}", "2 1"),
    "a LightningModule that knows nothing of levelfield": ("--model plain_module.Plain --model.width 8", "1 1"),
    "from the weights of a checkpoint": ("--trainer.max_epochs 2", "1 1"),
    "SIGKILL, two loader processes": ("--data.num_workers 2", "1 1 SIGKILL"),
    "SIGKILL in a validation, with max_steps": ("--trainer.max_steps 10", "1 1 validation SIGKILL"),
}  # fmt: skip
MARKS = {8: pytest.mark.full, 11: pytest.mark.processes, 12: [pytest.mark.processes, pytest.mark.full]}
PARAMETERS = [pytest.param(case, marks=MARKS.get(place, ())) for place, case in enumerate(CASES)]
TWO = "--trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp"
read = partial(torch.load, weights_only=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fit that nothing disturbs. Its data's number of loader processes is no setting."""
    folder = tmp_path_factory.mktemp("plain")
    assert main(words(folder, "whole")) == 0
    return folder / "fit/whole/0"


def words(folder: Path, name: str, options: str = "") -> list[str]:
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    few = ["--data.dataset.num_classes", "24", "--checkpoint_seconds", "0", "--output", str(folder), "--name", name]
    return ["fit", *TINY, "--config", str(folder / "base.yaml"), *options.split(), *few]


def equal(one: Any, other: Any) -> bool:
    """Whether two nested states are the same, to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


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
    options, moment = CASES[case]
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    start = ["--ckpt_path", str(plain / "best.ckpt")] if case.startswith("from") else []
    whole = plain if case in ("plain", "SIGKILL, two loader processes") else tmp_path / "fit/whole/0"
    if whole != plain:
        succeeded(run(*words(tmp_path, "whole", options), *start))
    killed = [*words(tmp_path, "killed", options), *start]
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


@pytest.mark.processes
def test_two_processes_are_killed_and_resume_in_one_folder(run, tmp_path: Path) -> None:
    def fit(name: str, *more: str, **environment: str) -> list[CompletedProcess[str]]:
        return torchrun(*levelfield(*words(tmp_path, name, TWO), *more), **environment)

    whole, killed = fit("whole"), fit("killed", **{KILL: "1 1 SIGKILL"})
    assert [done.returncode for done in whole] == [0, 0], whole
    assert killed[0].returncode == -signal.SIGKILL, killed
    shutil.copytree(tmp_path / "fit/killed", tmp_path / "fit/alone")
    resumed = fit("killed", "--resume")
    assert [done.returncode for done in resumed] == [0, 0], resumed
    assert sum(done.stdout.count("resuming in") for done in resumed) == 1
    assert [path.name for path in (tmp_path / "fit/killed").iterdir()] == ["0"]
    same(tmp_path / "fit/killed/0", tmp_path / "fit/whole/0")
    succeeded(run(*words(tmp_path, "alone", "--trainer.accelerator cpu"), "--resume"))  # another number goes on, too
    assert [path.name for path in (tmp_path / "fit/alone").iterdir()] == ["0"]
    one, other = (read(tmp_path / "fit" / name / "0/end.pt")["weights"] for name in ("alone", "whole"))
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_signal_ends_a_fit_in_one_line_and_a_state_is_stored_after_so_many_seconds(run, tmp_path, monkeypatch):
    command, folder = words(tmp_path, "stopped"), tmp_path / "fit/stopped"
    for moment, more, stored, key in [
        ("0 1 SIGTERM", [], None, "starts again"),
        ("1 1 SIGTERM", ["--checkpoint_seconds", "3600"], None, "starts again"),
        ("1 1 SIGUSR2", [], 4, "--resume"),
    ]:
        monkeypatch.setenv(KILL, moment)
        code, _, complaint = run(*command, "--resume", *more)
        (line,) = complaint.strip().splitlines()
        assert (code, line.partition(";")[0]) == (130, "stopped")
        assert key in line
        *_, newest = sorted(folder.iterdir())
        assert (newest / "last.ckpt").exists() == (stored is not None)
    assert read(newest / "last.ckpt")["global_step"] == stored
    monkeypatch.delenv(KILL)
    assert run(*command, "--resume")[0] == 0
    assert read(newest / "end.pt")["steps"] == 12


@pytest.mark.slow
def test_a_job_of_slurm_takes_no_checkpoint_of_lightnings_requeue(plain, fitted, run, tmp_path, monkeypatch):
    """A checkpoint of fold 2, whose validation classes this fit trains on, is in the working directory."""
    one_task = {"JOB_ID": "4177", "JOB_NAME": "fit", "NTASKS": "1", "NTASKS_PER_NODE": "1"}
    for name, value in {**one_task, "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes((fitted / "best.ckpt").read_bytes())
    succeeded(run(*words(tmp_path, "planted")))
    planted = tmp_path / "fit/planted/0"
    same(planted, plain)
    printed = [succeeded(run("validate", "--ckpt_path", path / "best.ckpt")) for path in (planted, plain)]
    one, other = ([line for line in each.splitlines() if "val/" in line] for each in printed)
    assert one == other
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["hpc_ckpt_1.ckpt"]


def test_what_a_fit_cannot_resume_from_is_refused(run, tmp_path, monkeypatch):
    command, last = [*words(tmp_path, "stopped"), "--resume"], tmp_path / "fit/stopped/0/last.ckpt"
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
    command = words(tmp_path, "stopped", f"{TWO if two else '--data.num_workers 2'} --trainer.max_epochs 1000")
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


CONFIG = {
    **{"name": None, "output": "outputs", "checkpoint_seconds": 60.0, "seed_everything": 0},
    "trainer": {"max_epochs": 2, "logger": None},
    "model": {"trunk_lr": 1e-4},
    "data": {"root": None, "num_workers": 0, "dataset": {"class_path": "Glyphs", "init_args": {}}},
}


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets go of what a test holds at its end."""
    held, hold = [], RunFolder.hold
    monkeypatch.setattr(RunFolder, "hold", lambda one: held.append(one) or hold(one))
    yield
    for one in held:
        one.release()


def begun(parent: Path, config: dict, *files: str) -> RunFolder:
    """A claim whose fit has written its configuration and some files."""
    found = claim(parent, config, False)
    for name, content in (("config.yaml", yaml.safe_dump(config)), *((name, "") for name in files)):
        (found.path / name).write_text(content)
    return found


def test_fits_that_begin_at_once_have_a_folder_each(released, tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def take(_: int) -> int:
        together.wait()
        return int(claim(tmp_path / "fit" / "mine", CONFIG, False).path.name)

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(take, range(8))) == list(range(8))


def test_only_a_stopped_fit_of_the_same_settings_is_resumed(released, tmp_path: Path) -> None:
    begun(tmp_path, CONFIG, "best.ckpt").finish()
    begun(tmp_path, CONFIG, "last.ckpt", "best.ckpt").release()
    begun(tmp_path, {**CONFIG, "model": {"trunk_lr": 1e-3}}, "last.ckpt").release()
    elsewhere = {**CONFIG, "output": "elsewhere", "data": {**CONFIG["data"], "root": "data", "num_workers": 4}}
    elsewhere["trainer"] = {**CONFIG["trainer"], "devices": 2, "num_nodes": 2, "strategy": "ddp"}
    found = claim(tmp_path, elsewhere, True)
    assert (found.path.name, found.state) == ("1", "unfinished")
    assert claim(tmp_path, {**CONFIG, "seed_everything": 1}, True).path.name == "3"
    found.finish()
    assert sorted(path.name for path in found.path.iterdir()) == ["best.ckpt", "config.yaml"]
    found = claim(tmp_path, CONFIG, True)
    assert (found.path.name, found.state) == ("1", "finished")
    assert claim(tmp_path, CONFIG, False).state == "new"
    begun(tmp_path / "stateless", CONFIG, "best.ckpt").release()
    found = claim(tmp_path / "stateless", CONFIG, True)
    assert (found.path.name, found.state) == ("1", "new")
    assert (tmp_path / "stateless/0/best.ckpt").exists()


def test_a_running_fit_is_not_resumed(released, tmp_path: Path) -> None:
    running = begun(tmp_path, CONFIG, "last.ckpt")
    with pytest.raises(UserError, match=str(running.path)):
        claim(tmp_path, CONFIG, True)
    claim(tmp_path / "mistake", CONFIG, False).release()
    assert list((tmp_path / "mistake").iterdir()) == []
    (tmp_path / "fit").write_text("")  # a file in the place of a folder
    for parent in (tmp_path / "fit" / "mine", tmp_path / "fit"):
        with pytest.raises(UserError, match=str(tmp_path / "fit")):
            claim(parent, CONFIG, False)
