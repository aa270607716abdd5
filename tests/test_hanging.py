"""A test that hangs fails after ten minutes, and the next one runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

HANGS = "import threading\ndef test_hangs():\n    threading.Event().wait()\ndef test_goes_on():\n    pass\n"


def test_a_test_that_hangs_fails(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) == 600
    (tmp_path / "test_it.py").write_text(HANGS)
    words = ["-c", str(REPOSITORY / "pyproject.toml"), "-o", "timeout=1", "-p", "no:xdist", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True, timeout=300)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_hangs - Failed: Timeout" in done.stdout
