"""Digests of the source code behind a row's numbers: of the classes that its configuration names, by file.

A digest covers what a class reaches: its own statements, the functions and classes that these use in the same file, and
the same in the files that they import. It follows all of a user's files, and files of levelfield in the package of the
class (`losses/pairs.py` for a loss), `numerics.py` and `seeds.py`. What turns a data set into batches belongs to every
row with a data set. Comments, docstrings, empty lines, other classes in the same file and new files
change no digest. Nothing is imported. Names that code computes at run time, and files that it reads, are not covered.
"""

import ast
import hashlib
import importlib
import importlib.util
import io
import pkgutil
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

import levelfield

DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
LEVELFIELD = Path(levelfield.__file__).parent
# The packages of the classes in a row; short names are looked up there.
PACKAGES = ("losses", "miners", "regularizers", "models", "data.datasets", "data.samplers", "data")
# What a row uses if it names nothing else.
DEFAULTS = {
    "model.trunk": "levelfield.models.TimmTrunk",
    "model.embedder": "levelfield.models.LinearEmbedder",
    "data.sampler": "levelfield.data.samplers.MPerClassBatchSampler",
}
# What turns any data set into splits and batches.
BATCHES = (
    "levelfield.data.splits.split_classes",
    "levelfield.data.splits.class_folds",
    "levelfield.data.transforms.ImageTransforms",
    "levelfield.data.subset.ClassSubset",
    "levelfield.data.loading._image_batch",
)
# Files outside the packages above that these compute with.
SHARED = {"levelfield.core.numerics", "levelfield.core.seeds"}
INSTALLED = {"site-packages", "dist-packages"}
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Target(NamedTuple):
    """A name at the top of a module; an empty one is the whole module."""

    module: str
    name: str


@dataclass(frozen=True)
class _Statement:
    """One statement at the top of a module, without comments and docstrings."""

    text: str
    binds: frozenset[str]
    uses: frozenset[str]


@dataclass(frozen=True, eq=False)
class _Source:
    """A module's file.

    Attributes:
        name: The path as of a module: `levelfield/losses/arcface.py`.
        imports: Name to its possible sources, anywhere in the file.
        stars: Modules of `from module import *`.
        defined: Names that its statements bind.
    """

    name: str
    file: Path
    statements: tuple[_Statement, ...]
    imports: dict[str, list[Target]]
    stars: tuple[str, ...]
    defined: frozenset[str]

    @property
    def is_shipped(self) -> bool:
        return self.file.is_relative_to(LEVELFIELD)


def sources(config: Any) -> dict[str, str]:
    """File to digest of the source code behind the classes of a configuration or of a part of it.

    Files are named like modules, `levelfield/losses/arcface.py` or `my_package/my_loss.py`, wherever they are.
    """
    return _known(frozenset(names_in(config)), tuple(sys.path)).now(_Files())


def sources_of(configs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """`sources` of several configurations; each file is looked up once."""
    files = _Files()
    return {key: _known(frozenset(names_in(each)), tuple(sys.path)).now(files) for key, each in configs.items()}


def names_in(config: Any) -> list[str]:
    """Every text of a configuration that could name a class, and the default classes.

    These names have the same sources as the configuration.
    """
    return sorted({*_names(config), *_defaults(config)})


class _Digests:
    """The digests of some classes; computed again if a file has changed, because a worker checks them for each job."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._digests: dict[str, str] = {}

    def now(self, files: "_Files") -> dict[str, str]:
        if not self._stamps or any(_stamp(file) != stamp for file, stamp in self._stamps.items()):
            found = files.reached(self._names)
            self._stamps = {source.file: _stamp(source.file) for source in found}
            self._digests = {source.name: digest for source, digest in found.items()}
        return dict(self._digests)


@cache
def _known(names: frozenset[str], path: tuple[str, ...]) -> _Digests:
    return _Digests(names)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _names(config: Any) -> Iterator[str]:
    """Every text that could name a class."""
    if isinstance(config, dict):
        yield from BATCHES if "dataset" in config else ()
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            yield from _names(value)
    elif isinstance(config, str) and DOTTED_NAME.fullmatch(config):
        yield config


def _defaults(config: Any) -> Iterator[str]:
    for key, name in DEFAULTS.items():
        section, _, part = key.partition(".")
        if isinstance(config, dict) and isinstance(config.get(section), dict):
            given = config[section].get(part) or {}
            if isinstance(given, dict) and "class_path" not in given:  # its arguments at most
                yield name


class _Files:
    """The current files of modules, each looked up once."""

    def __init__(self) -> None:
        importlib.invalidate_caches()
        self._modules: dict[str, _Source | None] = {}

    def reached(self, names: Iterable[str]) -> "dict[_Source, str]":
        """Every file that the classes reach, with the digest of the part that they reach."""
        to_do = [target for name in names if (target := self._class(name)) is not None]
        texts: dict[_Source, set[str]] = {}
        seen: set[Target] = set()
        while to_do:
            target = to_do.pop()
            source = None if target in seen else self._source(target.module)
            seen.add(target)
            if source is None:
                continue
            found = texts.setdefault(source, set())
            for statement in source.statements:
                if target.name in ("", *statement.binds) or not statement.binds:
                    found.add(statement.text)
                    to_do += [Target(target.module, name) for name in statement.uses]
            for imported in self._imported(source, target.name):
                found.add(f"{target.name} is {imported.module}.{imported.name}")
                to_do += [imported] if self._counts(source, imported) else []
        ordered = sorted((each for each in texts.items() if each[1]), key=lambda each: each[0].name)
        return {source: hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest() for source, found in ordered}

    def _class(self, name: str) -> Target | None:
        """The class or function of an import path or of a short name; None for other texts."""
        module, _, kind = name.rpartition(".")
        packages = [f"{levelfield.__name__}.{package}" for package in PACKAGES]
        # `levelfield.data` imports most names on first use, which the source does not show.
        for place in packages if module in ("", "levelfield.data") else [module]:
            found = self._resolve(Target(place, kind))
            if found is not None and found.name and self._counts(None, found):
                return found
        return None

    def _resolve(self, target: Target, asked: tuple[Target, ...] = ()) -> Target | None:
        """Where a name is defined: in its module, in a module that this one imports, or as a module itself."""
        source = self._source(target.module)
        if target in asked:  # modules that import each other
            return None
        if source is not None and (not target.name or target.name in source.defined):
            return target
        for imported in [] if source is None else self._imported(source, target.name, (*asked, target)):
            return imported
        inner = f"{target.module}.{target.name}"
        return None if self._source(inner) is None else Target(inner, "")

    def _imported(self, source: _Source, name: str, asked: tuple[Target, ...] = ()) -> list[Target]:
        """The sources of a name that a module imports; of all its imports for an empty name."""
        stars = [Target(module, name) for module in source.stars]
        if not name:
            every = [*(target for targets in source.imports.values() for target in targets), *stars]
        else:
            every = [] if name in source.defined else source.imports.get(name) or stars
        return [found for target in every if (found := self._resolve(target, asked)) is not None]

    def _counts(self, importer: _Source | None, target: Target) -> bool:
        """Whether a source counts: a user's does, levelfield's only in the package of the class, or if it is shared."""
        source = self._source(target.module)
        if source is None or not source.is_shipped:
            return source is not None
        if target.module in SHARED:
            return True
        if importer is not None and importer.is_shipped:
            return source.file.parent == importer.file.parent
        return any(target.module.startswith(f"{levelfield.__name__}.{package}") for package in PACKAGES)

    def _source(self, module: str) -> _Source | None:
        """The source of a module of the user or of levelfield; None for others."""
        if module not in self._modules:
            self._modules[module] = _read_module(module)
        return self._modules[module]


def _read_module(module: str) -> _Source | None:
    spec = _find(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin)
    if not file.is_file() or not (file.is_relative_to(LEVELFIELD) or _is_own(file)):
        return None
    return _read(module, bool(spec.submodule_search_locations), file, _stamp(file))


def _find(module: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike `importlib.util.find_spec`, without running its packages."""
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    for position in range(len(rest)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        if INSTALLED & set(Path(spec.origin or "").parts):  # installed packages are not the user's files
            return None
        spec = _find_in(".".join([first, *rest[: position + 1]]), list(spec.submodule_search_locations))
    return spec


def _find_in(name: str, folders: list[str]) -> ModuleSpec | None:
    """A module of a package, which may be a folder without `__init__.py`: `PathFinder` needs its parent imported."""
    finders = filter(None, map(pkgutil.get_importer, folders))
    found = [spec for spec in (finder.find_spec(name) for finder in finders) if spec is not None]
    return next((spec for spec in found if spec.loader is not None), next(iter(found), None))


def _is_own(file: Path) -> bool:
    return not INSTALLED & set(file.parts) and not any(file.is_relative_to(folder) for folder in _standard_library())


@cache
def _standard_library() -> list[Path]:
    return [Path(sysconfig.get_path(place)) for place in ("stdlib", "platstdlib")]


@cache
def _read(module: str, is_package: bool, file: Path, stamp: tuple[int, int]) -> _Source:
    """The current file of a module; another time or size reads it again."""
    name = module.replace(".", "/") + ("/__init__" if is_package else "") + file.suffix
    content = file.read_bytes()
    try:
        tree = ast.parse(content) if file.suffix == ".py" else None
    except (SyntaxError, ValueError):  # importing it reports the error
        tree = None
    if tree is None:
        whole = _Statement(hashlib.sha256(content).hexdigest(), frozenset(), frozenset())
        return _Source(name, file, (whole,), {}, (), frozenset())
    package = module if is_package else module.rpartition(".")[0]
    lines = _without_comments(content, tree)
    statements, imports, stars = [], dict[str, list[Target]](), list[str]()
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        uses = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                uses.add(inner.id)
            for bound, target in _targets(inner, package):
                if bound == "*":
                    stars.append(target.module)
                else:
                    imports.setdefault(bound, []).append(target)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not isinstance(node, ast.Import | ast.ImportFrom):
            first = min(each.lineno for each in (node, *getattr(node, "decorator_list", [])))
            text = "\n".join(line for line in lines[first - 1 : node.end_lineno] if line.strip())
            statements.append(_Statement(text, frozenset(_bound(node)), frozenset(uses)))
    defined = frozenset(name for statement in statements for name in statement.binds)
    return _Source(name, file, tuple(statements), imports, tuple(stars), defined)


def _targets(node: ast.AST, package: str) -> Iterator[tuple[str, Target]]:
    """The names that an import binds, with their sources."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], Target(alias.name, "")
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield alias.asname or alias.name, Target(module, alias.name)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a top-level statement binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.Lambda):
            yield from _bound(inner)


def _without_comments(content: bytes, tree: ast.Module) -> list[str]:
    """The lines of a source without comments and docstrings.

    `ast.dump` and `ast.unparse` differ between versions of Python.
    """
    lines = [line.rstrip(b"\r\n") for line in io.BytesIO(content)]
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            first, last = text.lineno - 1, (text.end_lineno or text.lineno) - 1
            head, tail = lines[first][: text.col_offset], lines[last][text.end_col_offset :]  # offsets are of bytes
            lines[first : last + 1] = [head, *[b""] * (last - first)]
            lines[last] += tail
    kept = [line.decode(errors="replace") for line in lines]
    for token in tokenize.tokenize(io.BytesIO(content).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            kept[row - 1] = kept[row - 1].removesuffix(token.string.rstrip()).rstrip() if column else ""
    return [line.rstrip() for line in kept]
