"""A test that hangs fails after ten minutes; a missing oracle fails where CI is set, and skips elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_pytest_timeout_ends_a_test_that_hangs(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("timeout")
    assert float(pytestconfig.getini("timeout")) == 600


@pytest.mark.parametrize(
    ("environment", "outcome", "words"),
    [
        ({"CI": "true", "LEVELFIELD_DATA": "nowhere"}, "2 failed, 1 skipped", ["no_such_oracle", "LEVELFIELD_DATA"]),
        ({"CI": "true", "LEVELFIELD_DATA": "none"}, "1 failed, 2 skipped", ["no_such_oracle", "extra dev"]),
        ({"CI": "", "LEVELFIELD_DATA": "nowhere"}, "3 skipped", []),
    ],
)
def test_what_is_missing(environment, outcome, words, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no_skips_in_ci", "test_it.py"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    alone = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    printed = done.stdout + done.stderr
    for word in (outcome, *words):
        assert word in printed, printed
