"""Parts of a learner as import paths and plain arguments, for checkpoints."""

import inspect
from functools import partial
from typing import Any

from torch import nn

from levelfield.storage.without_places import without_places
from levelfield.training.make_loss import given_arguments, loss_class
from levelfield.training.settings import SUPPLIED

# Arguments of a learner that are plain values and attributes of it.
PLAIN = (
    *("embedding_size", "embedder_init", "normalize", "distance"),
    *("freeze_trunk", "freeze_batch_norm", "seed"),
)


def plain_arguments(learner: Any, base: type, **parts: Any) -> dict[str, Any]:
    """The arguments that a checkpoint needs to build a `MetricLearner` again, as plain values.

    Args:
        base: `MetricLearner`; your own class is named next to the arguments.
        parts: trunk, loss and embedder as they were given.
    """
    own = None if type(learner) is base else import_spec(type(learner))
    named = {name: import_spec(part) for name, part in parts.items()}
    described = {**named, **{name: getattr(learner, name) for name in PLAIN}}
    return {**described, "learner": own["class_path"]} if own else described


def import_spec(thing: Any) -> Any:
    """A module, class or partial as `{class_path, init_args}`; None for an object with unknown arguments."""
    if "<locals>" in getattr(thing, "__qualname__", type(thing).__qualname__):
        return None
    if isinstance(thing, nn.Module):
        kind, arguments = type(thing), getattr(thing, "init_args", None)
    elif isinstance(thing, partial):
        kind = loss_class(thing)
        arguments = {name: value for name, value in given_arguments(thing).items() if name not in SUPPLIED}
    else:
        return {"class_path": _import_path(thing)} if inspect.isclass(thing) else None
    if arguments is None or not inspect.isclass(kind) or "<locals>" in kind.__qualname__ or not _is_plain(arguments):
        return None
    return {"class_path": _import_path(kind), "init_args": without_places(arguments)}


def plain_value(value: Any) -> Any:
    """A value for a checkpoint, also of a learner that calls `self.save_hyperparameters()`."""
    return value if _is_plain(value) else import_spec(value)


def _import_path(thing: Any) -> str:
    """The import path of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


def _is_plain(value: Any) -> bool:
    """Whether a value is plain enough for a checkpoint."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (bool, int, float, str)
