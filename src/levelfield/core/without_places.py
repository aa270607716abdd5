"""Remove local folders and addresses from checkpoints, results and pages."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Stands for the folder of a checkpoint in its content.
HERE = "{folder}"
ADDRESS = re.compile(r"\w(://|::)")  # `https://host/file`, and fsspec's `reference::file`
UPWARDS = re.compile(r"(^|/)\.\.(/|$)|(^|\\)\.\.\\")
OUTSIDE = re.compile(r"[/~]|\\\\|[A-Za-z]:[/\\]")  # the beginning of an absolute path, on any system


def is_address(text: str) -> bool:
    return ADDRESS.search(text) is not None


def goes_upwards(text: str) -> bool:
    """Whether a path has a part `..`."""
    return UPWARDS.search(text) is not None


def is_place(text: str) -> bool:
    """Whether a text points outside the working directory and the data root: an address, an absolute path or `..`."""
    return is_address(text) or goes_upwards(text) or OUTSIDE.match(text) is not None


def without_places(value: Any) -> Any:
    """Plain values with only the last name of each place."""
    return each_text(value, name_of)


def name_of(text: str) -> str:
    """The last name of a place; any other text unchanged."""
    if not is_place(text):
        return text
    whole = os.path.abspath(text) if goes_upwards(text) and not is_address(text) else text
    name = re.split(r"::|[/\\]", whole.rstrip("/\\"))[-1].lstrip("~")
    return "" if is_place(name) else name


def moved(value: Any, old: str, new: str) -> Any:
    """Plain values with the paths within the folder `old` turned into paths within `new`."""

    def told(text: str) -> str:
        return new + text[len(old) :] if text == old or text.startswith(old + os.sep) else text

    return each_text(value, told)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Plain values with each text and path in them changed."""
    if isinstance(value, dict):
        return {each_text(key, change): each_text(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(each_text(part, change) for part in value)
    if isinstance(value, list | tuple):
        return type(value)(each_text(part, change) for part in value)
    return change(str(value)) if isinstance(value, str | Path) else value
