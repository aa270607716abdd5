"""Parts of a learner as import paths and plain arguments, for checkpoints and loggers."""

import inspect
import sys
from dataclasses import fields
from functools import partial
from typing import Any

from torch import nn

from levelfield.core.init_args import plain
from levelfield.core.paths import strip_paths
from levelfield.training.loss_factory import form_of
from levelfield.training.optimization import Optimization
from levelfield.training.settings import SUPPLIED


def learner_arguments(learner: Any, base: type, **parts: Any) -> dict[str, Any]:
    """All arguments of a `MetricLearner` (`base`) as plain values; your own class is named next to them.

    `parts` are trunk, loss and embedder as they were given.
    """
    others = [name for name in inspect.signature(base).parameters if name not in (*parts, "optimization")]
    given = {**parts, **{name: getattr(learner, name) for name in others}}
    given |= {each.name: getattr(learner.optimization, each.name) for each in fields(Optimization)}
    path = _path(type(learner))
    own = {"learner": path} if type(learner) is not base and "<" not in path else {}
    return {name: plain_value(value) for name, value in given.items()} | own


def plain_value(value: Any) -> Any:
    """A value for a checkpoint: plain values as they are, any other as `{class_path, init_args}`.

    A function is its import path, and a class has no `init_args`. They are None for what cannot be built from its path
    and arguments: then `is_buildable` is false.
    """
    return plain(value, _described)


def _described(value: Any) -> Any:
    if isinstance(value, nn.ModuleDict):
        return plain_value(dict(value.items()))
    path, unknown = _path(value), {"class_path": _path(value), "init_args": None}
    if inspect.isfunction(value):  # a checkpoint calls only a function that says what it returns
        return path if "return" in value.__annotations__ and "<" not in path else unknown
    if inspect.isclass(value):
        return {"class_path": path} if "<" not in path else unknown
    kind, arguments = type(value), getattr(value, "init_args", None)
    if isinstance(value, partial):
        kind, given = form_of(value)
        arguments = {name: each for name, each in given.items() if name not in SUPPLIED}
    named = isinstance(arguments, dict) and (inspect.isclass(kind) or inspect.isfunction(kind))
    known = named and "<" not in _path(kind)
    return {"class_path": _path(kind), "init_args": strip_paths(plain_value(arguments)) if known else None}


def is_buildable(value: Any) -> bool:
    """Whether `plain_value` has all that is needed to build the object again."""
    if isinstance(value, dict):
        return value.get("init_args", value) is not None and all(map(is_buildable, value.values()))
    return not isinstance(value, list | tuple) or all(map(is_buildable, value))


def class_named(described: Any) -> Any:
    """The class that a description or a path names, because some classes have two paths; else the text.

    Nothing is imported.
    """
    path = described.get("class_path") if isinstance(described, dict) else described
    module, _, name = path.rpartition(".") if isinstance(path, str) else (None, None, None)
    return getattr(sys.modules.get(module or ""), name or "", path)


def _path(thing: Any) -> str:
    """The import path of a class or function, or of the class of an object. `<locals>` and `<lambda>` have none."""
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
