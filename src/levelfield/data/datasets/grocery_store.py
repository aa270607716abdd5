"""Grocery Store: photographs of fruit, vegetables and cartons, taken in shops with a phone."""

from levelfield.data.dataset import NamedDataset, SampleIndex, index_of_classes

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

    def read_index(self) -> SampleIndex:
        with self.sound(self.named_folder()):
            classes = sorted((int(fine), name, coarse) for name, fine, coarse, *_ in self._rows("classes.csv")[1:])
            samples = [(path, int(fine)) for part in PARTS for path, fine, _ in self._rows(f"{part}.txt")]
            names = {fine: name for fine, name, _ in classes}
            return index_of_classes(samples, names, coarse_names=tuple(coarse for *_, coarse in classes))

    def _rows(self, name: str) -> list[list[str]]:
        return [[value.strip() for value in line.split(",")] for line in self.lines(name)]
