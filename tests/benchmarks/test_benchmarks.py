"""`gpu.py`, `large.py` and `all.py` in miniature: every row has a number, a failing part leaves the others be."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_module import benchmark_module
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


@pytest.mark.full
@pytest.mark.processes
def test_a_part_that_fails_says_so_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "retrieval.py").write_text("raise RuntimeError('out of order')")  # what the part imports
    for file in BENCHMARKS.glob("gpu*.py"):
        shutil.copy(file, tmp_path)
    command = [sys.executable, str(tmp_path / "gpu.py"), "--device", "cpu", "--parts", "retrieval", "input", "--output"]
    subprocess.run([*command, str(tmp_path / "gpu.md")], check=True, stdout=subprocess.DEVNULL)
    first, second = (tmp_path / "gpu.md").read_text().split("## Input")
    assert "This part ended with 1" in first
    assert "out of order" in first
    assert "This part" not in second
    assert "| cache | 64 x 48 | 8 | 2 |" in second


@pytest.mark.full
@pytest.mark.parametrize("kind", ["path", "text"])
def test_the_steps_of_a_large_table(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = benchmark_module("large")
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(large, "BATCHES", 3)
    large.make_table(tmp_path / "t.parquet", 20_000, kind)
    steps = large.draw_batches(tmp_path / "t.parquet", kind).rows
    assert tuple(steps) == large.STEPS
    assert min(peak for _, _, peak in steps.values()) > 10


def test_each_marked_table_has_a_command_and_only_the_named_one_is_written_again(tmp_path: Path, monkeypatch) -> None:
    everything = benchmark_module("all")
    text = (BENCHMARKS / "README.md").read_text()
    found = [match[2] for match in everything.BLOCK.finditer(text)]
    assert len(found) == text.count("<!-- printed -->") > 5
    assert all((BENCHMARKS / f"{name}.py").is_file() for name in found)
    assert not re.search(r"\| ---[^\n]*\n\n<!-- -->", text), "a table without a row"
    page = tmp_path / "README.md"
    block = "    python benchmarks/{}.py --few 1\n\n<!-- printed -->\n\nold {}\n\n<!-- -->\n"
    page.write_text("Before\n\n" + block.format("one", "one") + "\nBetween\n\n" + block.format("two", "two"))
    monkeypatch.setattr(everything, "PAGE", page)
    monkeypatch.setattr(everything, "printed", lambda command: f"from {command.strip()}")
    monkeypatch.setattr("sys.argv", ["all.py", "two"])
    everything.main()
    text = page.read_text()
    for part in ("old one", "from python benchmarks/two.py --few 1", "torch", "Between"):
        assert part in text
    assert "old two" not in text
    assert text.count("<!-- printed -->") == 2
