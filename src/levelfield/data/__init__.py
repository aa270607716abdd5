"""Data sets, class-disjoint splits, batches and transforms."""

from levelfield.data.datasets import (
    Glyphs,
    GroceryStore,
    ImageFolder,
    ImageTable,
    MetricDataset,
    Omniglot,
    SampleIndex,
    Typefaces,
    VerifyReport,
)
from levelfield.data.samplers import Draw, EvalSampler, MPerClassBatchSampler
from levelfield.data.splits import check_validation_classes, class_folds, split_classes
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms

__all__ = [
    "ClassSubset",
    "Draw",
    "EvalSampler",
    "Glyphs",
    "GroceryStore",
    "ImageFolder",
    "ImageTable",
    "ImageTransforms",
    "MPerClassBatchSampler",
    "MetricDataset",
    "Omniglot",
    "SampleIndex",
    "Typefaces",
    "VerifyReport",
    "check_validation_classes",
    "class_folds",
    "split_classes",
]
