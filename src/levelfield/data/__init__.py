"""Data sets, class-disjoint splits, batches and transforms. Modules that need torch are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from levelfield.data import datasets
from levelfield.data.datasets import *  # noqa: F403 # the list is built from the files
from levelfield.data.splits import check_validation_classes, class_folds, split_classes

if TYPE_CHECKING:
    from levelfield.data.datamodule import MetricDataModule as MetricDataModule
    from levelfield.data.loaders import ClassSubset as ClassSubset
    from levelfield.data.samplers import *  # noqa: F403 # like the data sets
    from levelfield.data.transforms import ImageTransforms as ImageTransforms

_MODULES = {"ClassSubset": "loaders", "ImageTransforms": "transforms", "MetricDataModule": "datamodule"}
__all__ = [*_MODULES, "check_validation_classes", "class_folds", "split_classes"]
__all__ += datasets.__all__


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'samplers')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *import_module(f"{__name__}.samplers").__all__})
