"""Values that checkpoints, configurations and names of caches can hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def plain(value: Any, describe: Callable[[Any], Any]) -> Any:
    """Numbers, texts, lists and mappings of names as plain values; `describe` returns that of anything else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(plain(each, describe) for each in value)
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(each, describe) for name, each in value.items()}
    return describe(value)
