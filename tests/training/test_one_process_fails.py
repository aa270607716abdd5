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
@pytest.mark.parametrize(("command", "rank"), [("fit", 1), pytest.param("validate", 0, marks=pytest.mark.full)])
def test_no_process_stays_behind(command: str, rank: int, fitted: Path, tmp_path: Path) -> None:
    words = [*TINY, "--model.loss", "ContrastiveLoss"] if command == "fit" else ["--ckpt_path", fitted / "best.ckpt"]
    seconds, complaint = seconds_until_all_end(tmp_path, rank, command, *map(str, words))
    assert complaint.count(f"ValueError: process {rank} fails") == 1, complaint
    assert seconds < WAIT_SECONDS / 2
