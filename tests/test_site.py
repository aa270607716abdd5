"""The documentation site: what fails its build, its generated pages, and how docstrings become pages."""

import ast
import inspect
import json
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
METHODS = sorted((REPOSITORY / "configs" / "method").glob("*.yaml"))
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
FAULTY = """# Front

[page](docs/nothing.md) [heading](docs/other.md#nowhere) [file](docs/nothing.csv) [folder](docs)

![picture](docs/nothing.png)

```{eval-rst}
.. autoclass:: levelfield.errors.Nothing
```
"""


def test_what_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/conf.py").symlink_to(CONF)
    (tmp_path / "README.md").write_text(FAULTY)
    (tmp_path / "docs/other.md").write_text("# Other\n\n## Somewhere\n\n[it](#somewhere) [front](../README.md#front)\n")
    words = ["--fail-on-warning", "--keep-going", "--quiet", "-c", "docs", ".", "site"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    for fault in (
        "README.md:3: WARNING: 'myst' cross-reference target not found: 'docs/nothing.md'",
        "README.md:3: WARNING: local id not found in doc 'docs/other': 'nowhere'",
        "README.md:3: WARNING: 'myst' cross-reference target not found: 'docs/nothing.csv'",
        "README.md:3: WARNING: 'myst' cross-reference target not found: 'docs'",
        "README.md:5: WARNING: image file not readable: docs/nothing.png",
        "failed to import 'Nothing' from module 'levelfield.errors'",
        "docs/other.md: WARNING: document isn't included in any toctree",
    ):
        assert fault in done.stderr.replace(f"{tmp_path}/", "")
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


@pytest.mark.parametrize("package", WITH_PAGES)
def test_each_class_has_a_page_with_its_equation_and_arguments(package: str, pages: dict[str, str]) -> None:
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


@pytest.mark.parametrize("file", METHODS, ids=lambda file: file.stem)
def test_a_method_is_on_the_pages_of_its_classes(file: Path, pages: dict[str, str]) -> None:
    content = yaml.safe_load(file.read_text())
    names = set(re.findall(r"class_path: levelfield\.(?:losses|miners|regularizers)\.(\w+)", file.read_text()))
    assert names
    for name in names:
        section = pages[name].partition(f"\n### {file.stem}\n")[2].partition("\n### ")[0]
        assert yaml.safe_load(re.search(r"```yaml\n(.*?)\n```", section, re.DOTALL)[1])["model"] == content["model"]
        rows = {}
        for cells in re.findall(r"^\| `(\S+)`.* \| (\S+) \| (\S+) \| (\w+)", section, re.M):
            rows[cells[0]] = (float(cells[1]), float(cells[2]), cells[3])
        assert rows == {key: (s["low"], s["high"], s["scale"]) for key, s in content["search"].items()}


def test_names_in_tables_lead_to_pages(generate, pages: dict[str, str]) -> None:
    source = [(REPOSITORY / "docs" / "losses.md").read_text()]
    generate.add_links(None, "docs/losses", source)
    linked = set(re.findall(r"^\| \[`\w+`\]\(reference/\w+/(\w+)\.md", source[0], re.M))
    assert linked == set(pages) - {"commands"}


def test_the_page_of_commands_has_each(pages: dict[str, str]) -> None:
    assert [f"## levelfield {name}\n" in pages["commands"] for name in COMMANDS] == [True] * len(COMMANDS)
    for option in ("--resume", "--reopen-test", "--add-method", "--minutes", "--archive"):
        assert option in pages["commands"]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_lists_is_in_the_api(package: str) -> None:
    assert f".. automodule:: {package}\n   :members:\n   :imported-members:" in API


@pytest.mark.parametrize("package", PACKAGES + WITH_PAGES)
def test_what_a_package_lists_has_a_docstring(package: str) -> None:
    module = import_module(package)
    assert [name for name in module.__all__ if not getattr(getattr(module, name), "__doc__", None)] == []


def test_the_api_has_the_base_classes_the_face_and_the_rest_of_data() -> None:
    assert set(re.findall(r"\b(?:" + "|".join(BASES) + r")\b", API)) == BASES
    elsewhere = {"losses", "metrics", "miners", "regularizers", "__version__", "retrieval_metrics"}
    for name in set(import_module("levelfield").__all__) - elsewhere:
        assert f":: {name}\n" in API, name
    data = import_module("levelfield.data")
    for name in set(data.__all__) - set(data.datasets.__all__):
        assert f":: {name}\n" in API, name


def named_in_pages() -> set[tuple[str, str]]:
    """Modules and names that the pages' and notebooks' Python imports from us."""
    blocks = [
        block
        for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"))
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    for notebook in (REPOSITORY / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        blocks += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return {
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(re.sub(r"^[!%].*", "", block, flags=re.M)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "levelfield"
        for alias in node.names
    }


def test_what_pages_and_notebooks_import_is_in_the_reference() -> None:
    packages = PACKAGES + WITH_PAGES
    listed = [getattr(import_module(package), name) for package in packages for name in import_module(package).__all__]
    listed += [import_module(package) for package in (*packages, "levelfield.data")]
    for path in re.findall(r"^\.\. auto\w+:: (levelfield\.\S+)$", API, re.M):
        if path not in packages:
            module, _, name = path.rpartition(".")
            listed.append(getattr(import_module(module), name))
    for package in ("levelfield", "levelfield.data"):
        here = (REPOSITORY / "docs" / "api" / f"{package.rpartition('.')[2]}.md").read_text()
        names = re.findall(r"^\.\. auto\w+:: ([A-Za-z_]+)$", here, re.M)
        listed += [getattr(import_module(package), name) for name in names]
    assert len(named_in_pages()) > 20
    found = {f"{module}.{name}": getattr(import_module(module), name) for module, name in named_in_pages()}
    assert [
        path
        for path, part in found.items()
        if not path.rpartition(".")[2].isupper() and not any(part is each for each in listed)
    ] == [], "docs/api has not these"


def test_equations_code_and_examples_of_a_docstring_are_set_as_such(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    said = """Draws `a_` to *b*.

    L = |x_i| * 2
      + 1

Then x_ ends.

Args:
    power: p, as in `q`;
        on the next line.

Paper: Nobody 2026, arXiv:2601.00000.

Example:
    embed("a")
""".splitlines()
    runpy.run_path(str(CONF))["as_rst"](None, "class", "it", None, None, said)
    assert said == [
        "Draws ``a_`` to \\*b\\*.",
        "",
        ".. code-block:: text",
        "",
        "    L = |x_i| * 2",
        "      + 1",
        "",
        "Then x\\_ ends.",
        "",
        "Args:",
        "    power: p, as in ``q``;",
        "        on the next line.",
        "",
        "Paper: Nobody 2026, `arXiv:2601.00000 <https://arxiv.org/abs/2601.00000>`__.",
        "",
        "Example:",
        "",
        ".. code-block:: python",
        "",
        '    embed("a")',
    ]
