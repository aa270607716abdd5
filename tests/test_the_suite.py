"""A test that hangs fails after ten minutes; a missing oracle fails where CI is set, and skips elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

HANGS = "import threading\ndef test_hangs():\n    threading.Event().wait()\ndef test_goes_on():\n    pass\n"
TESTS = """
import pytest
from no_skips_in_ci import real_data


def test_oracle():
    pytest.importorskip("no_such_oracle")


def test_data():
    real_data()


def test_of_another_kind():
    pytest.skip("takes no miner")
"""


def pytest_on(folder: Path, text: str, plugin: str, *words: str, **environment: str) -> str:
    """Of pytest's plugins, the one that is tested: the others take seconds to import."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", plugin, *words, "test_it.py"]
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    alone = {**os.environ, **paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_test_that_hangs_fails(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) == 600
    words = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(tmp_path), "-o", "timeout=1"]
    printed = pytest_on(tmp_path, HANGS, "pytest_timeout", *words)
    assert "1 failed, 1 passed" in printed, printed
    assert "test_hangs - Failed: Timeout" in printed


@pytest.mark.parametrize(
    ("environment", "outcome", "words"),
    [
        ({"CI": "true", "LEVELFIELD_DATA": "nowhere"}, "2 failed, 1 skipped", ["no_such_oracle", "LEVELFIELD_DATA"]),
        ({"CI": "true", "LEVELFIELD_DATA": "none"}, "1 failed, 2 skipped", ["no_such_oracle", "extra dev"]),
        ({"CI": "", "LEVELFIELD_DATA": "nowhere"}, "3 skipped", []),
    ],
)
def test_what_is_missing(environment, outcome, words, tmp_path):
    printed = pytest_on(tmp_path, TESTS, "no_skips_in_ci", **environment)
    for word in (outcome, *words):
        assert word in printed, printed
