"""scripts/capabilities.py: each claim of a page has a row, and each row a claim and a test that are there."""

import importlib
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

README = """# A title

It trains **fast**, [as a table](results.md) says. It is `small`.

| you have | run |
| --- | --- |
| a loss | `levelfield study run quickstart --add-method my_loss.MyLoss` |

    levelfield fit --config data/glyphs \\
      --data.fold none
"""
TABLE = """| claim | test |
| --- | --- |
| A title | none: heading |
| It trains fast, as a table says. | tests/test_speed.py::test_it_is_fast, tests/test_speed.py::helper |
| It is large. | none: advice |
| a loss · levelfield study run quickstart --add-method my_loss.MyLoss | tests/test_speed.py::test_it_is_fast |
| `levelfield fit` | tests/test_gone.py::test_fit |
| `levelfield study run` |  |
| `--add-method` | tests/test_speed.py::test_within |
| `--config` | tests/test_speed.py::test_it_is_fast |
"""
TESTS = """def helper(): ...
def test_it_is_fast(): ...
class TestSpeed:
    def test_within(self): ...
"""


def test_what_is_missing_gone_or_new_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("capabilities")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    for name, text in {"README.md": README, "tests/capabilities.md": TABLE, "tests/test_speed.py": TESTS}.items():
        (tmp_path / name).write_text(text)
    assert module.faults() == [
        "no such test: tests/test_speed.py::helper, of: It trains fast, as a table says.",
        "on no page: It is large.",
        "no such test: tests/test_gone.py::test_fit, of: `levelfield fit`",
        "no such test: , of: `levelfield study run`",
        "no such test: tests/test_speed.py::test_within, of: `--add-method`",
        "no row: It is small.",
        "no row: --data.fold",
    ]
