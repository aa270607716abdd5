"""Where one of two processes of a command fails alone, the other does not stay behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from one_fails import WAIT_SECONDS
from tiny_fit import TINY

TWO = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
SETTINGS = """
trainer:
  callbacks: {{class_path: one_fails.OneFails, init_args: {{rank: {rank}, error: ValueError}}}}
"""


def seconds_until_all_end(folder: Path, rank: int, *words: str) -> tuple[float, str]:
    """How long it takes from the error until the last process has ended, and what they complained."""
    (folder / "settings.yaml").write_text(SETTINGS.format(rank=rank))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "levelfield", *words, *TWO, "--config", "settings.yaml"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    complaint = []
    while not complaint or " fails" not in complaint[-1]:
        complaint.append(process.stderr.readline())
        assert complaint[-1], "".join(complaint)
    failed = time.monotonic()
    _, rest = process.communicate()  # which all have closed
    return time.monotonic() - failed, "".join([*complaint, rest])


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("rank", [0, 1])
def test_no_process_of_a_fit_stays_behind(rank: int, tmp_path: Path) -> None:
    seconds, complaint = seconds_until_all_end(tmp_path, rank, "fit", *TINY, "--model.loss", "ContrastiveLoss")
    assert complaint.count(f"ValueError: process {rank} fails") == 1, complaint
    assert seconds < WAIT_SECONDS / 2


@pytest.mark.slow
@pytest.mark.processes
def test_no_process_of_a_validation_stays_behind(fitted: Path, tmp_path: Path) -> None:
    seconds, complaint = seconds_until_all_end(tmp_path, 0, "validate", "--ckpt_path", str(fitted / "best.ckpt"))
    assert complaint.count("ValueError: process 0 fails") == 1, complaint
    assert seconds < WAIT_SECONDS / 2
