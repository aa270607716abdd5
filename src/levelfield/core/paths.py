"""Paths: the folder of caches, modules in the working directory, and texts that name no folder of this machine."""

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError

HERE = "{folder}"  # the folder of a checkpoint, in its content
ADDRESS = re.compile(r"\w(://|::)")  # `https://host/file`, and fsspec's `reference::file`
UPWARDS = re.compile(r"(^|/)\.\.(/|$)|(^|\\)\.\.\\")
OUTSIDE = re.compile(r"[/~]|\\\\|[A-Za-z]:[/\\]")  # the beginning of an absolute path, on any system
CLASS_PATH = re.compile(r"(?<![\w./-])[^\W\d]\w*(?:\.[^\W\d]\w*)+(?![\w./-])")


def cache_root() -> Path:
    """The folder of caches: LEVELFIELD_CACHE, or `~/.cache/levelfield`."""
    try:
        return Path(os.environ.get("LEVELFIELD_CACHE") or Path.home() / ".cache" / "levelfield")
    except RuntimeError:  # as in a container that runs under any number
        raise UserError("this user has no home folder: set LEVELFIELD_CACHE to a folder for caches") from None


def find_own_modules(named: Any, modules: Iterable[str] = ()) -> None:
    """Import from the working directory too, last, if texts or configurations name a module that is only there.

    Otherwise a folder with a file such as `winreg.py`, which Python tries to import on Linux, would run it.
    """
    paths = [path for path in CLASS_PATH.findall(str(named)) if not (path.endswith(".yaml") or Path(path).exists())]
    for module in {path.partition(".")[0] for path in (*paths, *modules)}:
        is_here = Path(module).is_dir() or Path(f"{module}.py").is_file()
        if is_here and module not in sys.modules and importlib.util.find_spec(module) is None:
            sys.path.append(os.getcwd())


def is_place(text: str, absolute: bool = True) -> bool:
    """Whether a text points outside the working directory and the data root: an address, `..` or an absolute path."""
    return bool(ADDRESS.search(text) or UPWARDS.search(text) or (absolute and OUTSIDE.match(text)))


def name_of(text: str) -> str:
    """The last name of a place; any other text unchanged."""
    if not is_place(text):
        return text
    whole = os.path.abspath(text) if UPWARDS.search(text) and not ADDRESS.search(text) else text
    name = re.split(r"::|[/\\]", whole.rstrip("/\\"))[-1].lstrip("~")
    return "" if is_place(name) else name


def moved(value: Any, old: str, new: str) -> Any:
    """Plain values with the paths within the folder `old` turned into paths within `new`."""
    return each_text(value, lambda text: new + text[len(old) :] if f"{text}{os.sep}".startswith(old + os.sep) else text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Plain values with each text and path in them changed."""
    if isinstance(value, dict):
        return {each_text(key, change): each_text(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(each_text(part, change) for part in value)
    return change(str(value)) if isinstance(value, str | Path) else value


strip_paths = partial(each_text, change=name_of)  # plain values with only the last name of each place
