"""scripts/mutants.py: which changes it makes, and which of them it reports."""

import glob
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY


def test_rows_fit_the_source_and_find_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    mutants = importlib.import_module("mutants")
    monkeypatch.chdir(REPOSITORY)
    for file, tests, _, old, _, text in mutants.changes("", 0, 0, ""):
        assert text != (mutants.SOURCE / file).read_text(), f"{file}: not once here: {old}"
        for pattern in tests.split():
            assert glob.glob(pattern), f"{file}: no test: {pattern}"


@pytest.mark.full
def test_a_change_that_no_test_notices_is_reported(tmp_path: Path) -> None:
    for name, text in {
        "src/levelfield/__init__.py": "",
        "src/levelfield/largest.py": "def largest(values, least=0):\n    return max(values, key=abs)\n",
        "tests/test_largest.py": "from levelfield.largest import largest\ndef test():\n    assert largest([2, 3]) == 3",
        "tests/mutations.txt": "# rows\nlargest.py | max | min | tests/test_l*.py\n"
        "largest.py | def largest(values, least=0): | * | equivalent: nobody gives it\n",
        "pyproject.toml": '[tool.pytest.ini_options]\nmarkers = ["full", "gpu", "processes", "slow"]\n',
        "scripts/mutants.py": (REPOSITORY / "scripts/mutants.py").read_text(),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)

    def run(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "scripts/mutants.py", *words], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, sorted(line.partition(" | tests")[0] for line in done.stdout.splitlines())

    assert run() == (0, ["0 of 1 changes survived; no time for 0", "killed   largest.py:2 | max | min"])
    assert run("--files", "src/levelfield/largest.py") == (
        1,
        [
            "1 of 2 changes survived; no time for 0",
            "SURVIVED largest.py:2 | return max(values, key=abs) | return max(values)",
            "killed   largest.py:2 | return max(values, key=abs) | return min(values, key=abs)",
        ],
    )
