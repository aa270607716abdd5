"""The page on Python: every block runs as printed, and two processes give what one does."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

BLOCKS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text(), re.DOTALL)
SCRIPT = next(block for block in BLOCKS if block.startswith("# two_processes.py"))


def test_the_blocks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict = {"__name__": "page"}
    with warnings.catch_warnings():
        for notice in (".*does not have many workers.*", ".*in eval mode.*", ".*LeafSpec.*", ".*logging interval.*"):
            warnings.filterwarnings("ignore", notice)
        for block in BLOCKS:
            if block != SCRIPT:
                exec(compile(block, "docs/python.md", "exec"), scope)
    assert scope["best"].best_model_score > 0
    events = [json.loads(line) for line in Path("run/checkpoints/ledger.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["evaluated", "finished"] * 2
    assert [event["reason"] for event in events[::2]] == ["", "to show how it is done"]
    printed = capsys.readouterr().out
    assert printed.count("'map_at_r': ") == 2, "of the own loop"
    assert "done     8 of 8 jobs" in printed
    assert Path("smoke_study/results.csv").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_of_a_plain_trainer_give_what_one_does(tmp_path: Path) -> None:
    """Two epochs of 10 steps, in float64 where a step's rounding does not grow into other neighbours."""
    scores = {}
    for devices, strategy in ((1, "auto"), (2, "ddp")):
        folder = tmp_path / str(devices)
        folder.mkdir()
        script = SCRIPT.replace('devices=2, strategy="ddp"', f'devices={devices}, strategy="{strategy}"')
        (folder / "two_processes.py").write_text(script.replace("max_epochs=2", 'max_epochs=2, precision="64-true"'))
        command = [sys.executable, "two_processes.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("MAP@R")]
        scores[devices] = float(line.split()[1])
    assert scores[2] == pytest.approx(scores[1], abs=1e-9)
