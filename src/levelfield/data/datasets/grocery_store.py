"""Grocery Store: photographs of fruit, vegetables and cartons, taken in shops with a phone."""

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.lists import read_lines
from levelfield.data.index import SampleIndex, index_of_classes

PARTS = ("train", "val", "test")


class GroceryStore(NamedDataset):
    """Klasson, Zhang and Kjellström, "A Hierarchical Grocery Store Image Dataset", WACV 2019: 81 fine classes.

    Every class is in each official part, so the parts are merged and split by class. Coarse classes: the official ones,
    such as Apple and Juice.
    Tested with: the real files.

    Args:
        root: holds `grocery_store/dataset/`, as in the official repository; None takes the environment's
            LEVELFIELD_DATA.
    """

    name = "grocery_store"
    inner_folder = "dataset"
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
        classes = {int(fine): (name, coarse) for name, fine, coarse, *_ in self._rows("classes.csv", headers=1)}
        classes = dict(sorted(classes.items()))
        samples = [(path, int(fine)) for part in PARTS for path, fine, *_ in self._rows(f"{part}.txt")]
        unknown = sorted({fine for _, fine in samples} - classes.keys())
        if unknown:
            raise UserError(f"{self.named_folder() / 'classes.csv'} does not name class {unknown[0]}: {self.remedy}")
        names = {fine: name for fine, (name, _) in classes.items()}
        return index_of_classes(samples, names, coarse_names=tuple(coarse for _, coarse in classes.values()))

    def _rows(self, name: str, headers: int = 0) -> list[list[str]]:
        file, rows = self.named_folder() / name, []
        for line in read_lines(file, self.remedy)[headers:]:
            row = [value.strip() for value in line.split(",")]
            if len(row) < 3 or not row[1].isdecimal():
                raise UserError(f"{file}: '{line}' instead of a name, a class and a coarse class: {self.remedy}")
            rows.append(row)
        return rows
