"""The documentation site: what fails its build, its generated pages, and how docstrings become pages.

`.ci/run` builds the site; the tests of its generated pages are for `make test-full`.
"""

import ast
import inspect
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tiny_fit import REPOSITORY

from levelfield.cli.main import COMMANDS

CONF = REPOSITORY / "docs" / "conf.py"
BASES = {"MetricLoss", "PairLoss", "ClassificationLoss", "Miner", "Regularizer"}
WITH_PAGES = ["levelfield.losses", "levelfield.miners", "levelfield.regularizers"]
PACKAGES = [
    "levelfield.metrics",
    "levelfield.models",
    "levelfield.data.datasets",
    "levelfield.data.samplers",
    "levelfield.training.callbacks",
]
API = "\n".join(path.read_text() for path in (REPOSITORY / "docs" / "api").glob("*.md"))
CODE = ".. code-block:: "
FAULTY = """# Front

[page](docs/nothing.md) [heading](docs/other.md#nowhere) [file](docs/nothing.csv) [folder](docs)

![picture](docs/nothing.png)

```{eval-rst}
.. autoclass:: levelfield.errors.Nothing
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


@pytest.fixture(scope="module")
def generate():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        runpy.run_path(str(CONF))
        yield sys.modules["generate"]
    for name in ("generate", "lists"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def pages(generate, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The generated pages, by the names of their files."""
    folder = tmp_path_factory.mktemp("site")
    generate.write(SimpleNamespace(srcdir=folder))
    return {file.stem: file.read_text() for file in folder.rglob("*.md")}


def test_each_class_has_a_page_with_its_equation_and_arguments(generate, pages: dict[str, str]) -> None:
    for package in WITH_PAGES:
        module = import_module(package)
        for name in set(module.__all__) - BASES:
            tree = ast.parse(Path(inspect.getfile(getattr(module, name))).read_text())
            (kind,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
            first, second = ast.get_docstring(kind).split("\n\n")[:2]
            assert " ".join(first.split()) in pages[name]
            if second.startswith("    "):
                block = re.search(r"```text\n(.*?)\n```", pages[name], re.DOTALL)[1]
                assert [line.strip() for line in block.splitlines()] == [line.strip() for line in second.splitlines()]
            for argument in inspect.signature(getattr(module, name)).parameters.values():
                assert f"| `{argument.name}` |" in pages[name] or argument.kind is not argument.POSITIONAL_OR_KEYWORD
    source = [(REPOSITORY / "docs" / "losses.md").read_text()]
    generate.add_links(None, "docs/losses", source)
    assert set(re.findall(r"^\| \[`\w+`\]\(reference/\w+/(\w+)\.md", source[0], re.M)) == set(pages) - {"commands"}


def test_a_method_is_on_the_pages_of_its_classes_and_each_command_on_theirs(pages: dict[str, str]) -> None:
    for file in (REPOSITORY / "configs" / "method").glob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        names = set(re.findall(r"class_path: levelfield\.(?:losses|miners|regularizers)\.(\w+)", file.read_text()))
        assert names
        for name in names:
            section = pages[name].partition(f"\n### {file.stem}\n")[2].partition("\n### ")[0]
            assert yaml.safe_load(re.search(r"```yaml\n(.*?)\n```", section, re.DOTALL)[1])["model"] == content["model"]
            cells = re.findall(r"^\| `(\S+)`.* \| (\S+) \| (\S+) \| (\w+)", section, re.M)
            found = {key: (float(low), float(high), scale) for key, low, high, scale in cells}
            assert found == {key: (s["low"], s["high"], s["scale"]) for key, s in content["search"].items()}
    assert [name for name in COMMANDS if f"## levelfield {name}\n" not in pages["commands"]] == []
    for option in ("--resume", "--reopen-test", "--add-method", "--minutes", "--archive"):
        assert option in pages["commands"]


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
