"""The private parts of other libraries that the source uses: no other, and only below the versions that nobody tried.

That each does what the source takes it for, the tests of its files show.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tiny_fit import REPOSITORY

import levelfield

SOURCE = Path(levelfield.__file__).parent
# The first version of a library in which its private parts may be others; pyproject.toml has the same bound.
BOUNDS = {"jsonargparse": "5", "lightning": "2.7", "torchmetrics": "2", "timm": "1.1", "torch": "3"}
# Of Python's own: named tuples, argparse, os, importlib.
OF_PYTHON = {"_asdict", "_fields", "_replace", "_exit", "_actions", "_option_string_actions"}


PARTS = {
    "jsonargparse": {"_common", "_typehints"},
    "lightning": {
        *("_accelerator_connector", "_average_model", "_data_fetcher", "_evaluation_loop", "_layer_sync", "_Loop"),
        *("_logged_outputs", "_logger_connector", "_monitor_candidates", "_save_on_train_epoch_end", "_start_method"),
        *("_save_topk_checkpoint", "_trainer"),
    },
    "timm": {"_manipulate"},
    "torch": {"_BatchNorm", "_step_supports_amp_scaling"},
    "torchmetrics": {"_is_synced"},
}


def used() -> dict[str, set[str]]:
    """Private names that the source takes of something else, none of which it defines, and the files."""
    found: dict[str, set[str]] = {}
    own: set[str] = set(OF_PYTHON)
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        own |= set(_defined(tree))
        for name in _taken(tree):
            if name.startswith("_") and not name.startswith("__"):
                found.setdefault(name, set()).add(file.relative_to(SOURCE).as_posix())
    return {name: files for name, files in found.items() if name not in own}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _taken(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            if isinstance(node.args[1], ast.Constant):
                yield str(node.args[1].value)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("levelfield"):
            yield from (node.module or "").split(".")
            yield from (each.name for each in node.names)


def test_the_source_uses_no_other() -> None:
    known, found = {name for parts in PARTS.values() for name in parts}, used()
    assert set(found) == known, [(name, found.get(name)) for name in known ^ set(found)]


def test_the_project_stays_below_the_bounds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(PARTS) == set(BOUNDS)
    for library, bound in BOUNDS.items():
        (line,) = (each for each in project["dependencies"] if each.partition(">")[0].partition("[")[0] == library)
        assert line.endswith(f",<{bound}"), line
