"""`gpu.py` in miniature: every row has a number."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.mark.full
@pytest.mark.processes
def test_every_part_runs_in_miniature(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--output", str(tmp_path / "gpu.md")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    text = (tmp_path / "gpu.md").read_text()
    written = dict(re.findall(r"^## (\w+) \(.*?\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(written) == [
        "Waits",
        "Gather",
        "Validation",
        "Scoring",
        "Retrieval",
        "Losses",
        "Text",
        "Training",
        "Input",
        "Compare",
    ]
    for name, part in written.items():
        assert not [word for word in ("failed", "This part", "nan") if word in part], part
        assert part.count("\n| ") > 2, name  # more than the two lines of a header
    assert "learner.py" in written["Waits"]
    assert "| train | all |  | 4 | 1.00 |" in written["Waits"]  # the pretended wait of each step
    assert "| gloo | True | True |" in written["Gather"]
