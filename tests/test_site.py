"""The documentation site: what fails its build, what its reference holds, and how docstrings become pages."""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

CONF = REPOSITORY / "docs" / "conf.py"
ROOMS = [
    "levelfield.losses",
    "levelfield.miners",
    "levelfield.regularizers",
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
    shutil.copy(CONF, tmp_path / "docs")
    (tmp_path / "src").symlink_to(REPOSITORY / "src")
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


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_room_lists_is_in_the_reference(room: str) -> None:
    assert f".. automodule:: {room}\n   :members:\n   :imported-members:" in API
    module = import_module(room)
    for name in module.__all__:
        documented = getattr(getattr(module, name), "__doc__", None)
        assert documented, f"{room}.{name} has no docstring: the reference would pass over it"


def test_the_reference_has_the_face_and_the_rest_of_data() -> None:
    rooms = {"losses", "metrics", "miners", "regularizers", "__version__", "retrieval_metrics"}
    for name in set(import_module("levelfield").__all__) - rooms:
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
    listed = [getattr(import_module(room), name) for room in ROOMS for name in import_module(room).__all__]
    listed += [import_module(room) for room in (*ROOMS, "levelfield.data")]
    for path in re.findall(r"^\.\. auto\w+:: (levelfield\.\S+)$", API, re.M):
        if path not in ROOMS:
            module, _, name = path.rpartition(".")
            listed.append(getattr(import_module(module), name))
    for room in ("levelfield", "levelfield.data"):
        here = (REPOSITORY / "docs" / "api" / f"{room.rpartition('.')[2]}.md").read_text()
        listed += [
            getattr(import_module(room), name) for name in re.findall(r"^\.\. auto\w+:: ([A-Za-z_]+)$", here, re.M)
        ]
    assert len(named_in_pages()) > 20
    found = {f"{module}.{name}": getattr(import_module(module), name) for module, name in named_in_pages()}
    assert [
        path
        for path, part in found.items()
        if not path.rpartition(".")[2].isupper() and not any(part is each for each in listed)
    ] == [], "docs/api has not these"


def test_equations_code_and_examples_of_a_docstring_are_set_as_such() -> None:
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
