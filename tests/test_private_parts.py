"""The private parts of other libraries that the source uses: no other, and only below the versions that nobody tried.

That each does what the source takes it for, the tests of its files show.
"""

import ast
import tomllib
from pathlib import Path

from tiny_fit import REPOSITORY

import levelfield

SOURCE = Path(levelfield.__file__).parent
# The first version of a library in which its private parts may be others; pyproject.toml has the same bound.
BOUNDS = {"jsonargparse": "5", "lightning": "2.7", "torchmetrics": "2", "timm": "1.1", "torch": "3"}
# Of Python's own: named tuples, argparse, os, importlib.
OF_PYTHON = {"_asdict", "_fields", "_make", "_replace", "_exit", "_actions", "_option_string_actions"}
PARTS = {
    "jsonargparse": "_common _typehints",
    "lightning": "_accelerator_connector _average_model _data_fetcher _ddp_kwargs _evaluation_loop _layer_sync"
    " _Loop _logged_outputs _logger_connector _monitor_candidates _save_on_train_epoch_end _save_topk_checkpoint"
    " _start_method _trainer",
    "timm": "_manipulate",
    "torch": "_BatchNorm _step_supports_amp_scaling",
    "torchmetrics": "_is_synced",
}


def names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """What a file defines, and what it takes of something."""
    own: set[str] = set()
    taken = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(name), *_]):
                taken.add(str(name))
            case ast.ImportFrom(module=module, names=parts) if not (module or "").startswith("levelfield"):
                taken |= {*(module or "").split("."), *(part.name for part in parts)}
    return own, taken


def test_the_source_uses_no_other() -> None:
    """Of something that the source does not define itself."""
    own, found = set(OF_PYTHON), {}
    for file in SOURCE.rglob("*.py"):
        defined, taken = names(ast.parse(file.read_text(encoding="utf-8")))
        own |= defined
        for name in taken:
            if name.startswith("_") and not name.startswith("__"):
                found.setdefault(name, set()).add(file.name)
    known = set(" ".join(PARTS.values()).split())
    assert set(found) - own == known, [(name, found.get(name)) for name in known ^ (set(found) - own)]


def test_the_project_stays_below_the_bounds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(PARTS) == set(BOUNDS)
    for library, bound in BOUNDS.items():
        (line,) = (each for each in project["dependencies"] if each.partition(">")[0].partition("[")[0] == library)
        assert line.endswith(f",<{bound}"), line
