"""A missing oracle fails where CI is set, and skips elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Of pytest's plugins, this one alone: the others take seconds to import.
ALONE = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}
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
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no_skips_in_ci", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path, env={**os.environ, **ALONE, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert outcome in done.stdout, done.stdout + done.stderr
    for word in words:
        assert word in done.stdout


def test_a_module_that_lacks_its_oracle_fails_too(tmp_path):
    (tmp_path / "test_it.py").write_text('import pytest\npytest.importorskip("no_such_oracle")\n')
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no_skips_in_ci", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path, env={**os.environ, **ALONE, "CI": "true"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "could not import 'no_such_oracle'" in done.stdout
