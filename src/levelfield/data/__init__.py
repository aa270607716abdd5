"""Data sets, class-disjoint splits, batches and transforms."""

from levelfield.data.datasets import (
    CUB200,
    Cars196,
    Glyphs,
    GroceryStore,
    ImageFolder,
    ImageTable,
    InShopClothes,
    MetricDataset,
    Omniglot,
    SampleIndex,
    StanfordOnlineProducts,
    TsinghuaDogs130,
    Typefaces,
    VerifyReport,
)
from levelfield.data.samplers import Draw, EvalSampler, MPerClassBatchSampler
from levelfield.data.splits import check_validation_classes, class_folds, split_classes
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms

__all__ = [
    "CUB200",
    "Cars196",
    "ClassSubset",
    "Draw",
    "EvalSampler",
    "Glyphs",
    "GroceryStore",
    "ImageFolder",
    "ImageTable",
    "ImageTransforms",
    "InShopClothes",
    "MPerClassBatchSampler",
    "MetricDataset",
    "Omniglot",
    "SampleIndex",
    "StanfordOnlineProducts",
    "TsinghuaDogs130",
    "Typefaces",
    "VerifyReport",
    "check_validation_classes",
    "class_folds",
    "split_classes",
]
