"""Data sets, one file each."""

from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.datasets.banking77 import Banking77
from levelfield.data.datasets.cars196 import Cars196
from levelfield.data.datasets.clinc150 import CLINC150
from levelfield.data.datasets.cub200 import CUB200
from levelfield.data.datasets.glyphs import Glyphs
from levelfield.data.datasets.grocery_store import GroceryStore
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.data.datasets.inshop import InShopClothes
from levelfield.data.datasets.news20 import News20
from levelfield.data.datasets.omniglot import Omniglot
from levelfield.data.datasets.own_tables import ImageTable, TextTable
from levelfield.data.datasets.sop import StanfordOnlineProducts

__all__ = [name for name in dir() if name[0].isupper()]
