"""Parts of a learner as import paths and plain arguments, for checkpoints and loggers."""

import inspect
from dataclasses import fields
from functools import partial
from typing import Any

from torch import nn

from levelfield.storage.without_places import without_places
from levelfield.training.make_loss import given_arguments, loss_class
from levelfield.training.optimization import Optimization
from levelfield.training.settings import SUPPLIED

# Arguments of a learner that are attributes of it.
ATTRIBUTES = (
    *("embedding_size", "embedder_init", "miner", "regularizer", "normalize", "distance"),
    *("freeze_trunk", "freeze_batch_norm", "seed"),
)


def learner_arguments(learner: Any, base: type, **parts: Any) -> dict[str, Any]:
    """All arguments of a `MetricLearner` as plain values.

    Args:
        base: `MetricLearner`; your own class is named next to the arguments.
        parts: trunk, loss and embedder as they were given.
    """
    given = {**parts, **{name: getattr(learner, name) for name in ATTRIBUTES}}
    given |= {each.name: getattr(learner.optimization, each.name) for each in fields(Optimization)}
    own = {} if type(learner) is base or "<" in type(learner).__qualname__ else {"learner": _path(type(learner))}
    return {name: plain_value(value) for name, value in given.items()} | own


def plain_value(value: Any) -> Any:
    """A value for a checkpoint: plain values as they are, any other as `{class_path, init_args}`.

    A function is its import path, and a class has no `init_args`. They are None for an object that does not know its
    arguments: then `is_buildable` is false.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if _is_mapping(value):
        return {name: plain_value(each) for name, each in value.items()}
    if inspect.isclass(value):
        return {"class_path": _path(value)}
    if inspect.isfunction(value):  # a checkpoint calls only a function that says what it returns
        return _path(value) if "return" in value.__annotations__ else {"class_path": _path(value), "init_args": None}
    kind, arguments = type(value), getattr(value, "init_args", None)
    if isinstance(value, partial):
        kind = loss_class(value)
        arguments = {name: each for name, each in given_arguments(value).items() if name not in SUPPLIED}
    named = _is_mapping(arguments) and (inspect.isclass(kind) or inspect.isfunction(kind))
    return {"class_path": _path(kind), "init_args": without_places(plain_value(arguments)) if named else None}


def is_buildable(value: Any) -> bool:
    """Whether `plain_value` has all that is needed to build the object again."""
    if isinstance(value, str):
        return "<locals>" not in value and "<lambda>" not in value
    if isinstance(value, dict):
        return value.get("init_args", value) is not None and all(map(is_buildable, value.values()))
    return not isinstance(value, list) or all(map(is_buildable, value))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict | nn.ModuleDict) and all(isinstance(name, str) for name in value)


def _path(thing: Any) -> str:
    """The import path of a class or function."""
    return f"{thing.__module__}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
