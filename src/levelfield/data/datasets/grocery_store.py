"""Grocery Store: photographs of fruit, vegetables and cartons taken in shops with a telephone."""

import csv
from pathlib import Path

import numpy as np

from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.base import NamedDataset
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError

PARTS = ("train", "val", "test")


class GroceryStore(NamedDataset):
    """Klasson, Zhang and Kjellström, "A Hierarchical Grocery Store Image Dataset", WACV 2019: 81 fine classes.

    Every class is in each of the official parts, so the parts are pooled and split by class instead.
    Tested with: the real files.

    Args:
        root: holds `grocery_store/dataset/`, as in the official repository; None takes the environment's
            LEVELFIELD_DATA.
    """

    name = "grocery_store"
    licence = "MIT"
    source = "https://github.com/marcusklasson/GroceryStoreDataset"
    num_classes_published = 81
    num_samples_published = 5421
    archives = (
        Archive(
            "GroceryStoreDataset.zip",
            gives="dataset",
            url="https://github.com/marcusklasson/GroceryStoreDataset/archive/refs/heads/master.zip",
            inside="GroceryStoreDataset-master",
        ),
    )

    def read_index(self) -> SampleIndex:
        class_names = {int(fine): name for name, fine, *_ in self._rows("classes.csv")[1:]}
        samples = [(path, int(fine)) for part in PARTS for path, fine, *_ in self._rows(f"{part}.txt")]
        label_of = {fine: label for label, fine in enumerate(sorted(class_names))}
        unknown = sorted({fine for _, fine in samples} - label_of.keys())
        if unknown:
            raise UserError(f"{self._folder() / 'classes.csv'} does not name class {unknown[0]}: fetch it again")
        return SampleIndex(
            tuple(path for path, _ in samples),
            np.array([label_of[fine] for _, fine in samples], dtype=np.int64),
            tuple(class_names[fine] for fine in label_of),
        )

    def file_of(self, key: str) -> Path:
        return self._folder() / key

    def _folder(self) -> Path:
        return self.named_folder() / "dataset"

    def _rows(self, name: str) -> list[list[str]]:
        file = self._folder() / name
        try:
            with file.open(newline="", encoding="utf-8") as opened:
                rows = [row for row in csv.reader(opened, skipinitialspace=True) if row]
        except FileNotFoundError:
            raise UserError(f"no file {file}: fetch the data set again from {self.source}") from None
        for number, row in enumerate(rows, start=1):
            if len(row) < 3 or (number > 1 and not row[1].isdecimal()):
                raise UserError(f"{file}, row {number} is not a name, a class and a coarse class: fetch it again")
        return rows
