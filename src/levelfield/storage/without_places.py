"""What a checkpoint tells of the places of a machine: names, no folders."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Stands for the folder of a checkpoint in what it holds.
HERE = "{folder}"


def without_places(value: Any) -> Any:
    """Plain values with the name alone of each file or folder that is given by an absolute path."""
    return _each_text(value, lambda text: Path(text).name if os.path.isabs(text) else text)


def moved(value: Any, old: str, new: str) -> Any:
    """Plain values with the paths within the folder `old` turned into paths within `new`."""

    def told(text: str) -> str:
        return new + text[len(old) :] if text == old or text.startswith(old + os.sep) else text

    return _each_text(value, told)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {_each_text(key, change): _each_text(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_each_text(part, change) for part in value)
    return change(str(value)) if isinstance(value, str | Path) else value
