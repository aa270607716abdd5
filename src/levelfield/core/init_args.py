"""Objects that know the arguments of their constructor."""

import inspect
from typing import Any, Self


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
