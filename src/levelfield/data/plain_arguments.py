"""A data set and a datamodule as plain values, for configurations and checkpoints."""

import inspect
from dataclasses import asdict
from typing import Any

from levelfield.core.errors import UserError
from levelfield.core.plain import plain
from levelfield.data.dataset import MetricDataset
from levelfield.data.places import dataset_without_ways
from levelfield.data.transforms import ImageTransforms


def class_and_arguments(made: Any) -> dict[str, Any]:
    """Import path and arguments of an object, which are read from its attributes of the same names.

    Arguments become plain values: an object becomes its own import path and arguments, and a path becomes a text.

    Raises:
        UserError: an argument has no such attribute, or cannot be a plain value.
    """
    kind = type(made)
    arguments = inspect.signature(kind).parameters
    values = {}
    for name in arguments:
        if not hasattr(made, name):
            raise UserError(f"{kind.__name__} takes the argument {name}: store it as self.{name}")
        try:
            values[name] = plain(getattr(made, name), _object)
        except (UserError, ValueError, TypeError, RecursionError):  # of `signature`, too
            raise UserError(
                f"{kind.__name__} takes the argument {name} of type {type(getattr(made, name)).__name__}, which no "
                "checkpoint can hold: give plain values, or an object that stores its own arguments under their names"
            ) from None
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": values}


def _object(value: Any) -> dict[str, Any]:
    described = class_and_arguments(value)
    if not described["init_args"] and vars(value):  # `vars` raises TypeError for objects of C
        raise TypeError("an object whose state is not in its arguments")
    return described


def dataset_spec(dataset: MetricDataset, root: str | None) -> dict[str, Any]:
    """A data set as import path and arguments, without local folders."""
    return dataset_without_ways(class_and_arguments(dataset), root)


def transforms_spec(transforms: Any) -> dict[str, Any]:
    """Transforms as plain values: the fields of `ImageTransforms`, or import path and arguments of another class."""
    if isinstance(transforms, ImageTransforms):
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(transforms).items()}
    return class_and_arguments(transforms)


def plain_arguments(data: Any, kind: type) -> dict[str, Any]:
    """The arguments of the class `kind` that build a datamodule again, without the root."""
    names = inspect.signature(kind).parameters
    given = {name: getattr(data, name) for name in names if name != "sampler"}
    transforms = transforms_spec(data.transforms)
    text = data.dataset.modality == "text"
    path = f"{data.sampler.__module__}.{getattr(data.sampler, '__qualname__', '<locals>')}"
    # A checkpoint needs no training batches, so a sampler without a name is left out.
    named = {} if "<locals>" in path else {"sampler": {"class_path": path}}
    spec = dataset_spec(data.dataset, data.root)
    return {**given, "dataset": spec, "root": None, "transforms": None if text else transforms, **named}
