"""`benchmarks/gpu.py` in miniature: every row has a number, and a part that fails leaves the others be."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY


def parts(folder: Path, *words: str) -> dict[str, str]:
    """What each part wrote."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py"), "--device", "cpu", *words]
    subprocess.run([*command, "--output", str(folder / "gpu.md")], check=True, stdout=subprocess.DEVNULL)
    text = (folder / "gpu.md").read_text()
    return dict(re.findall(r"^## (\w+) \(.*?\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


pytestmark = [pytest.mark.full, pytest.mark.processes]


def test_every_part_runs_in_miniature(tmp_path):
    written = parts(tmp_path)
    parts_in_order = "Waits Gather Validation Scoring Retrieval Losses Text Training Input Compare"
    assert list(written) == parts_in_order.split()
    for name, text in written.items():
        assert "failed" not in text, text
        assert "This part" not in text, text
        assert "nan" not in text, text
        assert text.count("\n| ") > 2, name  # more than the two lines of a header
    assert "learner.py" in written["Waits"]
    assert "| train | all |  | 4 | 1.00 |" in written["Waits"]  # the pretended wait of each step
    assert "| gloo | True | True |" in written["Gather"]


def test_a_part_that_fails_says_so_and_the_next_one_runs(tmp_path):
    broken = tmp_path / "retrieval.py"  # what the part imports
    broken.write_text("raise RuntimeError('out of order')")
    for file in (REPOSITORY / "benchmarks").glob("gpu*.py"):
        shutil.copy(file, tmp_path)
    command = [sys.executable, str(tmp_path / "gpu.py"), "--device", "cpu", "--parts", "retrieval", "input", "--output"]
    subprocess.run([*command, str(tmp_path / "gpu.md")], check=True, stdout=subprocess.DEVNULL)
    first, second = (tmp_path / "gpu.md").read_text().split("## Input")
    assert "This part ended with 1" in first
    assert "out of order" in first
    assert "This part" not in second
    assert "| cache | 64 x 48 | 8 | 2 |" in second
