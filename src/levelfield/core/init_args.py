"""Objects that know the arguments of their constructor, and plain values, which a checkpoint can hold."""

import inspect
from collections.abc import Callable
from contextlib import suppress
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
        signature = inspect.signature(cls.__init__)
        with suppress(TypeError):  # wrong arguments, which the constructor names; or none, for a copy
            bound = signature.bind(made, *args, **kwargs)
            bound.apply_defaults()
            named = dict([*bound.arguments.items()][1:])
            name_of = {each.kind: each.name for each in signature.parameters.values()}
            if not named.pop(name_of.get(inspect.Parameter.VAR_POSITIONAL, ""), ()):
                vars(made)["init_args"] = named | named.pop(name_of.get(inspect.Parameter.VAR_KEYWORD, ""), {})
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
