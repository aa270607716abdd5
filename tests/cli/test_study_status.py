"""A study's standing on a real terminal and for machines."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from levelfield.cli.main import main
from levelfield.storage.lock import Lock
from levelfield.study.jobs import RESULT, Job

LAST = Job("arcface", "run", 1, 1)
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, words: list[str], columns: int, rows: int) -> None:
        self.ours, self.theirs = pty.openpty()
        self.before = termios.tcgetattr(self.theirs)
        self.resize(columns, rows)
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(Path("src").resolve())}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "levelfield", *words],
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs,
            env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is this terminal's
        )  # fmt: skip
        self.shown = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, wanted: str, seconds: float = 120) -> str:
        """What is shown from now on, up to where it holds `wanted`."""
        start, end = len(self.shown), time.monotonic() + seconds
        while wanted not in plain(self.shown[start:]):
            assert time.monotonic() < end, plain(self.shown[start:])
            if select.select([self.ours], [], [], 0.2)[0]:
                self.shown += os.read(self.ours, 65536)
        return plain(self.shown[start:])

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def ended(self) -> int:
        """The exit code, and the rest of what is shown."""
        while self.process.poll() is None:
            if select.select([self.ours], [], [], 0.2)[0]:
                self.shown += os.read(self.ours, 65536)
        while select.select([self.ours], [], [], 0)[0]:
            self.shown += os.read(self.ours, 65536)
        return self.process.returncode


def plain(content: bytes) -> str:
    """Without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", content.decode(errors="ignore"))


@pytest.fixture
def unfinished(copy: Path) -> Path:
    """The toy study with a run to do and one that failed."""
    study = copy
    (study / LAST.path / RESULT).unlink()
    failed = study / Job("contrastive", "run", 1, 1).path / RESULT
    result = json.loads(failed.read_text())
    whole = {key: value for key, value in result.items() if key not in ("validation", "checkpoint", "files")}
    failed.write_text(json.dumps({**whole, "failure": "the loss is nan at step 3"}))
    return study


@pytest.mark.processes
def test_a_watch_fits_the_terminal_and_leaves_it_as_it_was(unfinished: Path) -> None:
    study = unfinished
    terminal = Terminal(["study", "status", str(study), "--watch"], columns=110, rows=30)
    with Lock(study, str(LAST.path.relative_to("jobs")), str(LAST)):
        shown = terminal.wait_for("failed, the loss is nan at step 3")
        assert re.search(r"contrastive +\S+ +6/6 +\S+ +4/4 1 failed", shown)
        assert re.search(r"arcface +\S+ +6/6 +\S+ +3/4 +\d+\.\d  margin \d", shown)
        assert str(LAST) in terminal.wait_for(str(LAST))
        terminal.resize(64, 12)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.wait_for("toy")
        narrow = terminal.wait_for("3/4")
        assert max(len(line) for line in re.split(r"[\r\n]+", narrow)) <= 64
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert terminal.shown.count(HIDE) == terminal.shown.count(SHOW) > 0
    assert terminal.shown.rindex(SHOW) > terminal.shown.rindex(HIDE)
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert "Traceback" not in plain(terminal.shown)


def test_machines_get_one_line_of_json(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = unfinished
    assert main(["study", "status", str(study), "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    counted = {key: told[key] for key in ("study", "done", "jobs", "to_do", "running", "tested", "to_test")}
    assert counted == {
        **{"study": "toy", "done": 21, "jobs": 22, "to_do": 1, "running": []},
        **{"tested": 5, "to_test": 4},  # a stored score of the run that has failed since is one
    }
    assert told["failed"] == {"contrastive run 1 fold 1": "the loss is nan at step 3"}
    arcface = next(each for each in told["methods"] if each["method"] == "arcface")
    assert arcface["stages"]["run"] == {"jobs": 4, "done": 3, "failed": 0}
    results = [json.loads(path.read_text()) for path in study.glob("jobs/arcface/trial*/fold*/result.json")]
    values: dict[int, list[float]] = {}
    for result in results:
        values.setdefault(result["number"], []).append(result["validation"]["map_at_r"])
    best = max(values, key=lambda number: sum(values[number]))
    assert arcface["best"] == pytest.approx(sum(values[best]) / 2)
    assert arcface["setting"] == next(result["parameters"] for result in results if result["number"] == best)


def test_a_watch_of_a_finished_study_says_so_and_ends(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "status", str(copy), "--watch"]) == 0
    assert "done     22 of 22 jobs" in capsys.readouterr().out


def test_a_run_for_machines_says_nothing_else(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "resume", str(copy), "--json"]) == 0
    answer = capsys.readouterr()
    [summary] = map(json.loads, answer.out.splitlines())
    assert summary["event"] == "summary"
    assert {(row["method"], row["metric"]) for row in summary["rows"]} >= {("arcface", "map_at_r")}
    assert "summary.csv" in answer.err


@pytest.mark.processes
def test_a_run_on_a_terminal_ends_cleanly_on_ctrl_c(toy_file: Path, tmp_path: Path) -> None:
    words = ["study", "run", str(toy_file), "--output", str(tmp_path / "toy"), "--executor.workers", "1"]
    terminal = Terminal([*words, "--search.sampler", "random"], columns=100, rows=24)
    shown = terminal.wait_for("contrastive trial 0 fold 0: validation MAP@R")
    shown += terminal.wait_for(" left")
    assert re.search(r"arcface +\S+ +0/6 +\S+ +0/4", shown)
    terminal.type(b"\x03")
    assert terminal.ended() == 130
    assert "jobs done; go on with: levelfield study resume" in plain(terminal.shown)
    assert "Traceback" not in plain(terminal.shown)
    assert terminal.shown.rindex(SHOW) > terminal.shown.rindex(HIDE)
    assert termios.tcgetattr(terminal.theirs) == terminal.before
