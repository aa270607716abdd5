"""Data sets, one file each."""

from levelfield.data.datasets.base import MetricDataset, SampleIndex, VerifyReport
from levelfield.data.datasets.cars196 import Cars196
from levelfield.data.datasets.cub200 import CUB200
from levelfield.data.datasets.glyphs import Glyphs
from levelfield.data.datasets.grocery_store import GroceryStore
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.data.datasets.image_table import ImageTable
from levelfield.data.datasets.omniglot import Omniglot
from levelfield.data.datasets.sop import StanfordOnlineProducts

__all__ = [
    "CUB200",
    "Cars196",
    "Glyphs",
    "GroceryStore",
    "ImageFolder",
    "ImageTable",
    "MetricDataset",
    "Omniglot",
    "SampleIndex",
    "StanfordOnlineProducts",
    "VerifyReport",
]
