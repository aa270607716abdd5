"""Where one of two processes of a command fails alone, the other does not stay behind."""

import time
from pathlib import Path

import pytest
from forked import Forked, children, levelfield
from one_fails import WAIT_SECONDS
from tiny_fit import TINY

from levelfield.runtime.processes import is_running

TWO = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
SETTINGS = """
trainer:
  callbacks: {{class_path: one_fails.OneFails, init_args: {{rank: {rank}, error: ValueError}}}}
"""


def seconds_until_all_end(folder: Path, rank: int, *words: str) -> tuple[float, str]:
    """How long it takes from the error until the last process has ended, and what they complained."""
    (folder / "settings.yaml").write_text(SETTINGS.format(rank=rank))
    process = Forked(levelfield(*words, *TWO, "--config", "settings.yaml"), folder / "log", folder)
    process.wait_for(lambda: " fails" in process.printed())
    failed, others = time.monotonic(), children(process.pid)
    complaint = process.wait()
    while any(map(is_running, others)):
        time.sleep(0.01)
    return time.monotonic() - failed, complaint


@pytest.mark.processes
@pytest.mark.parametrize("rank", [0, 1])
def test_no_process_of_a_fit_stays_behind(rank: int, tmp_path: Path) -> None:
    seconds, complaint = seconds_until_all_end(tmp_path, rank, "fit", *TINY, "--model.loss", "ContrastiveLoss")
    assert complaint.count(f"ValueError: process {rank} fails") == 1, complaint
    assert seconds < WAIT_SECONDS / 2


@pytest.mark.processes
def test_no_process_of_a_validation_stays_behind(fitted: Path, tmp_path: Path) -> None:
    seconds, complaint = seconds_until_all_end(tmp_path, 0, "validate", "--ckpt_path", str(fitted / "best.ckpt"))
    assert complaint.count("ValueError: process 0 fails") == 1, complaint
    assert seconds < WAIT_SECONDS / 2
