"""A data set and a datamodule as plain values, as a configuration and a checkpoint hold them."""

import inspect
from dataclasses import asdict
from typing import Any

from levelfield.data.datasets.base import MetricDataset
from levelfield.data.places import dataset_without_ways


def dataset_spec(dataset: MetricDataset, root: str | None) -> dict[str, Any]:
    """A data set as import path and arguments, without the way to its files, which is a machine's own."""
    kind = type(dataset)
    arguments = {name: getattr(dataset, name) for name in inspect.signature(kind).parameters}
    spec = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}
    return dataset_without_ways(spec, root)


def plain_arguments(data: Any, kind: type) -> dict[str, Any]:
    """The arguments that a datamodule takes as a `kind`, `MetricDataModule`, without the root."""
    names = inspect.signature(kind).parameters
    given = {name: getattr(data, name) for name in names if name != "sampler"}
    transforms = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(data.transforms).items()}
    text = data.dataset.modality == "text"
    path = f"{data.sampler.__module__}.{getattr(data.sampler, '__qualname__', '<locals>')}"
    # Nothing that is done with a checkpoint takes training batches: a sampler without a name is left out.
    named = {} if "<locals>" in path else {"sampler": {"class_path": path}}
    spec = dataset_spec(data.dataset, data.root)
    return {**given, "dataset": spec, "root": None, "transforms": None if text else transforms, **named}
