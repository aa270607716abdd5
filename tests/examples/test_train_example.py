"""`examples/train.py` learns, on one process and on two, and logs to W&B."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY
from wandb_files import offline_runs

TRAIN = REPOSITORY / "examples/train.py"
MOST_LINES = 60


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("devices", [1, 2])
def test_it_scores_above_the_untrained_trunk(devices: int, tmp_path: Path) -> None:
    words = [sys.executable, TRAIN, "--epochs", "1", "--size", "32", "--devices", devices, "--wandb"]
    # An earlier test's W&B names its own process there.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    environment |= {"WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [str(word) for word in words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ((before, after),) = re.findall(r"before training: (\S+), after: (\S+)", done.stdout)
    assert float(after) > 2 * float(before)
    (logged,) = offline_runs(tmp_path / "outputs/train/wandb")
    assert [*logged.series("val/map_at_r").values()] == pytest.approx([float(before), float(after)], abs=1e-4)


def test_it_is_short() -> None:
    assert len(TRAIN.read_text().splitlines()) <= MOST_LINES
