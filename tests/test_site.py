"""The documentation site, which `.ci/run` builds: what fails its build, and how docstrings become pages."""

import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

CONF = REPOSITORY / "docs" / "conf.py"
BASES = {"MetricLoss", "PairLoss", "ClassificationLoss", "Miner", "Regularizer"}
WITH_PAGES = ["levelfield.losses", "levelfield.miners", "levelfield.regularizers"]
PACKAGES = ["levelfield.metrics", "levelfield.models", "levelfield.data.datasets", "levelfield.data.samplers"]
PACKAGES += ["levelfield.training.callbacks"]
API = "\n".join(path.read_text() for path in (REPOSITORY / "docs" / "api").glob("*.md"))
CODE = ".. code-block:: "
FAULTY = """# Front

[page](docs/nothing.md) [heading](docs/other.md#nowhere) [file](docs/nothing.csv) [folder](docs)

![picture](docs/nothing.png)

```{eval-rst}
.. autoclass:: levelfield.core.errors.Nothing
```
"""


@pytest.mark.full
def test_what_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/conf.py").symlink_to(CONF)
    (tmp_path / "README.md").write_text(FAULTY)
    (tmp_path / "docs/other.md").write_text("# Other\n\n## Somewhere\n\n[it](#somewhere) [front](../README.md#front)\n")
    words = ["--fail-on-warning", "--keep-going", "--quiet", "-c", "docs", ".", "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    names = ("'docs/nothing.md'", "'nowhere'", "'docs/nothing.csv'", "'docs'", "docs/nothing.png", "'Nothing'")
    for fault in (*names, "toctree"):
        assert fault in done.stderr
    assert "somewhere" not in done.stderr


def test_what_a_package_lists_is_in_the_api_and_has_a_docstring() -> None:
    for package in PACKAGES + WITH_PAGES:
        assert package in WITH_PAGES or f".. automodule:: {package}\n   :members:\n   :imported-members:" in API
        module = import_module(package)
        assert [name for name in module.__all__ if not getattr(getattr(module, name), "__doc__", None)] == []
    assert set(re.findall(r"\b(?:" + "|".join(BASES) + r")\b", API)) == BASES
    elsewhere = {"losses", "metrics", "miners", "regularizers", "__version__", "retrieval_metrics"}
    data = import_module("levelfield.data")
    rest_of_data = set(data.__all__) - set(data.datasets.__all__)
    for name in (set(import_module("levelfield").__all__) - elsewhere) | rest_of_data:
        assert f":: {name}\n" in API, name


def test_equations_code_and_examples_of_a_docstring_are_set_as_such(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    as_rst = runpy.run_path(str(CONF))["as_rst"]
    for said, wanted in (
        ("Draws `a_` to *b*.", "Draws ``a_`` to \\*b\\*."),
        (
            "See:\n\n    L = |x_i| * 2\n      + 1\n\nx_ ends.",
            f"See:\n\n{CODE}text\n\n    L = |x_i| * 2\n      + 1\n\nx\\_ ends.",
        ),
        ("Args:\n    power: p, as in `q`;\n        next.", "Args:\n    power: p, as in ``q``;\n        next."),
        ("It.\nPaper: arXiv:2601.00000.", "It.\n\nPaper: `arXiv:2601.00000 <https://arxiv.org/abs/2601.00000>`__."),
        ('Example:\n    embed("a")', f'Example:\n\n{CODE}python\n\n    embed("a")'),
    ):
        as_rst(None, "class", "it", None, None, lines := said.splitlines())
        assert "\n".join(lines) == wanted
