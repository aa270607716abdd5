"""A fit of two processes that a signal stops goes on, on both, to the bytes of one that was left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_fit import TINY

WORDS = [
    *("--model.loss", "ContrastiveLoss", "--data.steps_per_epoch", "4"),
    *("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"),
]
SETTINGS = """
trainer:
  log_every_n_steps: 1
  callbacks: {{class_path: signal_at.SignalAt, init_args: {{step: {step}, number: 10}}}}
"""


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def fit(folder: Path, step: int, launcher: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    settings = folder / f"settings_{step}.yaml"
    settings.write_text(SETTINGS.format(step=step))
    command = [sys.executable, *launcher, "-m", "levelfield", "fit", *TINY, *WORDS, "--config", str(settings), *words]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, env=environment)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "launcher", [pytest.param([], id="ours"), pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.full)]
)
def test_two_processes_stop_at_the_same_step_and_go_on_in_one_folder(launcher: list[str], tmp_path: Path) -> None:
    undisturbed = fit(tmp_path, -1, [], "--name", "undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    stopped = fit(tmp_path, 3, launcher, "--name", "stopped")
    assert stopped.returncode == (1 if launcher else 75), stopped.stderr  # torchrun has a code of its own
    assert stopped.stderr.count("SIGUSR1") == 1
    folder = tmp_path / "outputs" / "fit" / "stopped"
    assert (folder / "0" / "last.ckpt").exists()
    resumed = fit(tmp_path, 3, launcher, "--name", "stopped", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert [path.name for path in folder.iterdir()] == ["0"]
    expected = folder.with_name("undisturbed")
    assert (folder / "0" / "metrics.csv").read_bytes() == (expected / "0" / "metrics.csv").read_bytes()
    found, weights = (
        torch.load(each / "0" / "best.ckpt", weights_only=True)["state_dict"] for each in (folder, expected)
    )
    assert all(torch.equal(found[key], weights[key]) for key in weights)
