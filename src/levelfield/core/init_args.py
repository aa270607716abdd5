"""Objects that know the arguments of their constructor, and plain values, which a checkpoint can hold."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np


class KeepsArguments:
    """Keeps its constructor's arguments, with defaults, as `init_args`, so that a checkpoint can build it again.

    None if some have no name (`*args`).
    """

    init_args: dict[str, Any] | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        signature, named = inspect.signature(cls.__init__), dict[str, Any]()
        try:
            bound = signature.bind(made, *args, **kwargs)
        except TypeError:  # wrong arguments, which the constructor names; or none, for a copy
            return made
        bound.apply_defaults()
        for name, value in [*bound.arguments.items()][1:]:
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif kind is not inspect.Parameter.VAR_POSITIONAL:
                named[name] = value
            elif value:
                return made
        vars(made)["init_args"] = named
        return made


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
