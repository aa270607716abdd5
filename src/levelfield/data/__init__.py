"""Data sets, class-disjoint splits, batches and transforms."""

from levelfield.data import datasets, samplers
from levelfield.data.datasets import *  # noqa: F403 # one file each: their list is made from the files
from levelfield.data.samplers import *  # noqa: F403 # as the data sets
from levelfield.data.splits import check_validation_classes, class_folds, split_classes
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms

__all__ = [
    "ClassSubset",
    "ImageTransforms",
    "check_validation_classes",
    "class_folds",
    "split_classes",
]
__all__ += [*datasets.__all__, *samplers.__all__]
