"""A data set and a datamodule as plain values, for configurations and checkpoints."""

import inspect
from dataclasses import asdict
from typing import Any

from levelfield.data.datasets.base import MetricDataset
from levelfield.data.places import dataset_without_ways
from levelfield.data.transforms import ImageTransforms


def dataset_spec(dataset: MetricDataset, root: str | None) -> dict[str, Any]:
    """A data set as import path and arguments, without local folders."""
    kind = type(dataset)
    arguments = {name: getattr(dataset, name) for name in inspect.signature(kind).parameters}
    spec = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}
    return dataset_without_ways(spec, root)


def transforms_spec(transforms: Any) -> dict[str, Any]:
    """Transforms as plain values: the fields of `ImageTransforms`, or import path and arguments of another class.

    Arguments of another class are read from its attributes of the same names.
    """
    if isinstance(transforms, ImageTransforms):
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(transforms).items()}
    kind = type(transforms)
    arguments = {name: getattr(transforms, name, None) for name in inspect.signature(kind).parameters}
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}


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
