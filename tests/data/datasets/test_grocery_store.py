"""Grocery Store as published, pooled."""

from pathlib import Path

import numpy as np
import pytest

from levelfield.data.datasets.grocery_store import GroceryStore
from levelfield.data.splits import split_classes
from levelfield.errors import UserError

LISTS = Path("grocery_store", "dataset")


def test_the_published_counts(data_root: Path) -> None:
    grocery = GroceryStore(data_root)
    index = grocery.read_index()
    assert (len(index.class_names), len(index.keys)) == (81, 5421)
    assert len(set(index.keys)) == 5421
    parts = [key.partition("/")[0] for key in index.keys]
    assert [parts.count(part) for part in ("train", "val", "test")] == [2640, 296, 2485]  # the paper's section 3
    trainval, test = split_classes(index.labels)
    assert (trainval.tolist(), test.tolist()) == (list(range(40)), list(range(40, 81)))
    assert (index.class_names[0], index.class_names[80]) == ("Golden-Delicious", "Zucchini")
    assert [index.coarse_names[label] for label in (0, 4, 5, 80)] == ["Apple", "Apple", "Avocado", "Zucchini"]
    lists = [(data_root / LISTS / f"{part}.txt").read_text().splitlines() for part in ("train", "val", "test")]
    rows = [line.split(", ") for lines in lists for line in lines]
    official = {int(fine): int(coarse) for _, fine, coarse in rows}
    pairs = set(zip(index.coarse_labels(), (official[label] for label in index.labels), strict=True))
    assert len(pairs) == len(set(index.coarse_names)) == len(set(official.values())) == 43
    folder_of_class = {
        name: {Path(k).parent.name for k in np.array(index.keys)[index.labels == label]}
        for label, name in enumerate(index.class_names)
    }
    assert all(len(folders) == 1 for folders in folder_of_class.values())
    assert grocery.load(index.keys[0]).mode == "RGB"


def test_missing_and_malformed_lists(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        GroceryStore(tmp_path).read_index()
    folder = tmp_path / "grocery_store" / "dataset"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot read .*classes\.csv"):
        GroceryStore(tmp_path).read_index()
    (folder / "classes.csv").write_text("Class Name (str),Class ID (int),Coarse\nApple,0,Fruit\n")
    for said, content in (
        ("train/b.jpg, zero, 0", b"train/a.jpg, 0, 0\ntrain/b.jpg, zero, 0\n"),
        ("not text in UTF-8", b"\xe9, 0, 0"),
    ):
        (folder / "train.txt").write_bytes(content)
        with pytest.raises(UserError, match=rf"train\.txt.*{said}.* levelfield data prepare"):
            GroceryStore(tmp_path).read_index()
    (folder / "train.txt").write_text("train/a.jpg, 1, 0\n")
    for part in ("val", "test"):
        (folder / f"{part}.txt").write_text("")
    with pytest.raises(UserError, match="does not name class 1"):
        GroceryStore(tmp_path).read_index()
