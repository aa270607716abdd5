"""One's own code behind a method: the files, outside installed packages, that its classes come from."""

import ast
import hashlib
import importlib.util
import pkgutil
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import levelfield

DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
PACKAGE_FOLDERS = ("site-packages", "dist-packages")


def own_code(config: Any) -> dict[str, str]:
    """File to SHA-256: where a configuration's classes lie, and the local modules that these import.

    Files are named as modules are, `my_package/my_loss.py`, wherever they lie. What an installed package or levelfield
    itself provides is not one's own: their versions are recorded with each result. Nothing is imported; what a module
    imports by a name that it computes, and the files that it reads, are not seen.

    Args:
        config: What `levelfield fit --config` takes, or a part of it.
    """
    importlib.invalidate_caches()
    found: dict[str, str] = {}
    to_do = [module for path in _class_paths(config) for module in _modules_of(path)]
    seen = set()
    while to_do:
        name = to_do.pop()
        spec = None if name in seen else _find(name)
        seen.add(name)
        if spec is None or not _is_own(spec):
            continue
        source = Path(str(spec.origin))
        content = source.read_bytes()
        file = name.replace(".", "/") + ("/__init__" if spec.submodule_search_locations else "") + source.suffix
        found[file] = hashlib.sha256(content).hexdigest()
        if source.suffix == ".py":
            to_do += _imports(content, name, is_package=bool(spec.submodule_search_locations))
    return dict(sorted(found.items()))


def _class_paths(config: Any) -> Iterator[str]:
    """Every text that looks like an import path."""
    if isinstance(config, dict):
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            yield from _class_paths(value)
    elif isinstance(config, str) and DOTTED_NAME.fullmatch(config):
        yield config


def _modules_of(path: str) -> list[str]:
    """The module that an import path's class lies in and the packages above it; none if there is no such class."""
    parts = path.split(".")
    if parts[0] == levelfield.__name__:
        return []
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        spec = _find(name)
        if spec is not None and _is_own(spec) and parts[length] in _defined(Path(str(spec.origin))):
            return _with_parents(name)
    return []


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _find(name: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike `importlib.util.find_spec`, without running its packages."""
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    for position in range(len(rest)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        inner = ".".join([first, *rest[: position + 1]])
        spec = find_in(inner, list(spec.submodule_search_locations))
    return spec


def find_in(name: str, folders: list[str]) -> ModuleSpec | None:
    """A module of a package, which may be a folder without `__init__.py`: `PathFinder` needs its parent imported."""
    finders = filter(None, map(pkgutil.get_importer, folders))
    found = [spec for spec in (finder.find_spec(name) for finder in finders) if spec is not None]
    return next((spec for spec in found if spec.loader is not None), next(iter(found), None))


def _is_own(spec: ModuleSpec) -> bool:
    if not spec.has_location or spec.origin is None:
        return False
    file = Path(spec.origin)
    installed = set(PACKAGE_FOLDERS) & set(file.parts) or any(file.is_relative_to(folder) for folder in _elsewhere())
    return file.is_file() and not installed  # an imported module's file may be gone


@cache
def _elsewhere() -> list[Path]:
    """Where the standard library and levelfield lie."""
    return [Path(levelfield.__file__).parent, *(Path(sysconfig.get_path(place)) for place in ("stdlib", "platstdlib"))]


def _parsed(content: bytes) -> ast.Module:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError):  # whoever imports it says so
        return ast.Module([], [])


def _defined(source: Path) -> set[str]:
    """What a module defines, or takes from another, at its top."""
    names: set[str] = set()
    for node in _parsed(source.read_bytes()).body if source.suffix == ".py" else []:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _imports(content: bytes, module: str, is_package: bool) -> list[str]:
    """All modules that a source may import; a name taken from a module may be a module itself."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    names = []
    for node in ast.walk(_parsed(content)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [parent for name in names if name for parent in _with_parents(name)]
