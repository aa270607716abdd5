"""Digests of the source code behind a row's numbers: of the files of the classes that its configuration names.

A class counts with its file and with the files that this one imports, directly or not: all of a user's files, and
those of levelfield in the folder of the class (`losses/pairs.py` for a loss), `numerics.py` and `seeds.py`. The files
that turn a data set into batches belong to every row with a data set. Comments, docstrings, empty lines and new files
change no digest. Nothing is imported. Names that code computes at run time, and files that it reads, are not covered.
"""

import ast
import hashlib
import importlib
import importlib.util
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from levelfield.core.configuration import texts

DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DATA = "levelfield.data"
# The packages of the classes in a row; short names are looked up there.
PACKAGES = tuple(f"levelfield.{name}" for name in ("losses", "miners", "regularizers", "models"))
PACKAGES += (f"{DATA}.datasets", f"{DATA}.samplers", DATA)
DEFAULTS = {  # what a row uses if it names nothing else
    "model.trunk": "levelfield.models.TimmTrunk",
    "model.embedder": "levelfield.models.LinearEmbedder",
    "data.sampler": "levelfield.data.samplers.MPerClassBatchSampler",
}
# The files that turn any data set into splits and batches; what they import does not count.
BATCHES = tuple(f"{DATA}.{name}" for name in ("images", "splits", "transforms", "loaders"))
SHARED = ("levelfield.core.numerics", "levelfield.core.seeds")  # that the packages above compute with
INSTALLED = {"site-packages", "dist-packages"}


class _Source(NamedTuple):
    """A module's file."""

    module: str
    name: str  # the path as of a module, `levelfield/losses/arcface.py`, wherever it is
    code: str  # without comments and docstrings
    imports: tuple[tuple[str, str, str], ...]  # the bound name, the module, the name in it or "" for the whole module

    @property
    def is_shipped(self) -> bool:
        return self.name.startswith("levelfield/")

    def counts_for(self, importer: "_Source | None") -> bool:
        """Whether it counts: a user's file does, levelfield's in the folder of the class, or if it is shared."""
        if not self.is_shipped or self.module in SHARED:
            return True
        if importer is None or not importer.is_shipped:
            return self.module.startswith(PACKAGES)
        return importer.module not in BATCHES and self.name.rpartition("/")[0] == importer.name.rpartition("/")[0]


def sources(config: Any) -> dict[str, str]:
    """File to digest of all files behind the classes of a configuration, or of a part of it: a walk along imports."""
    importlib.invalidate_caches()
    _source.cache_clear()
    given = [*texts(config)]
    names = {text for _, text in given if DOTTED_NAME.fullmatch(text)}  # that could be of a class
    if isinstance(config, dict):
        named = {key for key, _ in given}
        names |= {name for key, name in DEFAULTS.items() if config.get(key.split(".")[0]) and key not in named}
    found: dict[str, str] = {}
    to_do: list[tuple[_Source | None, _Source | None]]  # who imports, and what
    to_do = [(None, _defining(module, name)) for module, _, name in (text.rpartition(".") for text in names)]
    if any("dataset" in key.split(".") for key, _ in given):
        to_do += [(None, _source(module)) for module in BATCHES]
    while to_do:
        importer, source = to_do.pop()
        if source is not None and source.name not in found and source.counts_for(importer):
            found[source.name] = hashlib.sha256(source.code.encode(errors="replace")).hexdigest()
            for _, module, name in source.imports:
                inner = (_source(f"{module}.{name}") or _defining(module, name)) if name else None
                to_do.append((source, inner or _source(module)))
    return dict(sorted(found.items()))


def _defining(module: str, name: str) -> _Source | None:
    """The file of a module that has a name, or the file that a package of levelfield imports the name from."""
    # `levelfield.data` imports most names on first use, which its source does not show.
    for place in PACKAGES if module in ("", DATA) else (module,):
        if (source := _source(place)) is not None:
            origins = [origin for bound, origin, _ in source.imports if bound == name]
            if origins and source.is_shipped and source.name.endswith("__init__.py"):
                return _source(origins[0])
            if origins or re.search(rf"^\s*(class|def) {name}\b|^{name} ?[:=,]", source.code, re.MULTILINE):
                return source
    return None


@cache  # until the next question
def _source(module: str) -> _Source | None:
    """The file of a module of the user or of levelfield now, found without running packages; None for others."""
    first, *rest = module.split(".")
    with suppress(ImportError, ValueError, OSError):
        spec = None if first in sys.stdlib_module_names else importlib.util.find_spec(first)
        for name in rest:
            spec = spec and PathFinder.find_spec(name, spec.submodule_search_locations or [])
        file = Path(spec.origin) if spec and spec.has_location and spec.origin else None
        if file and (first == "levelfield" or not INSTALLED & {*file.parts}):
            return _read(module, file, file.stat().st_mtime_ns, file.stat().st_size)
    return None


@cache
def _read(module: str, file: Path, modified: int, size: int) -> _Source:
    """A file, read again at another time or size."""
    is_package = file.stem == "__init__"
    name = module.replace(".", "/") + ("/__init__" if is_package else "") + file.suffix
    try:
        with tokenize.open(file) as opened:
            text = opened.read()
        imports = _imports(ast.parse(text), module if is_package else module.rpartition(".")[0])
        return _Source(module, name, _code(text), tuple(imports))
    except (SyntaxError, ValueError, ImportError, tokenize.TokenError):  # not Python; or importing it reports the error
        return _Source(module, name, file.read_bytes().decode("latin-1"), ())


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                yield alias.asname or alias.name, module, "" if alias.name == "*" else alias.name


def _code(text: str) -> str:
    """A source without comments, empty lines and docstrings, the same for all versions of Python, unlike `ast.dump`."""
    lines, before = text.split("\n"), tokenize.NEWLINE
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type != tokenize.NL]
    for token, after in pairwise(tokens):
        begins = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        is_docstring = token.type == tokenize.STRING and begins and after.type in (tokenize.NEWLINE, tokenize.COMMENT)
        if token.type == tokenize.COMMENT or is_docstring:
            (row, column), (end, _) = token.start, token.end
            lines[row - 1 : end] = [lines[row - 1][:column], *[""] * (end - row)]
        if token.type != tokenize.COMMENT:
            before = token.type
    return "\n".join(line.rstrip() for line in lines if line.strip())
