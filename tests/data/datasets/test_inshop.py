"""In-shop Clothes from its partition, at full length without the images."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from miniatures import inshop

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import InShopClothes
from levelfield.errors import UserError


def test_the_published_counts(tmp_path: Path) -> None:
    lines = []
    for status, first, items, images in (
        ("train", 0, 3997, 25882),
        ("query", 3997, 3985, 14218),
        ("gallery", 3997, 3985, 12612),
    ):
        for number in range(images):
            item = f"id_{first + number % items:08d}"
            lines.append(f"img/MEN/Denim/{item}/{status}_{number}.jpg  {item}  {status}")
    (tmp_path / "inshop").mkdir()
    partition = tmp_path / "inshop" / "list_eval_partition.txt"
    partition.write_text("\n".join(["52712", "image_name item_id evaluation_status", *lines]))
    index = InShopClothes(tmp_path).read_index()
    assert (len(index.keys), len(index.class_names)) == (52712, 7982)
    assert Counter(index.roles) == {"": 25882, "query": 14218, "gallery": 12612}
    assert index.test_classes == tuple(range(3997, 7982))


@pytest.mark.parametrize("official_folders", [True, False])
def test_its_own_halves_queries_and_gallery(official_folders: bool, tmp_path: Path) -> None:
    inshop(tmp_path, classes=16, samples=4, official_folders=official_folders)
    data = MetricDataModule(InShopClothes(tmp_path), num_folds=2)
    data.setup("fit")
    assert data.identity()["split"] == "official"
    assert data.train_subset is not None
    assert data.val_subset is not None
    trained_on = {*data.train_subset.class_names, *data.val_subset.class_names}
    assert trained_on == {f"id_{label + 1:08d}" for label in range(1, 16, 2)}
    data.setup("test")
    assert data.test_subset is not None
    assert set(data.test_subset.class_names) == {f"id_{label + 1:08d}" for label in range(0, 16, 2)}
    assert Counter(data.test_subset.index.roles) == {"query": 16, "gallery": 16}
    assert abs(np.asarray(InShopClothes(tmp_path)[5][0])[18, 20].astype(int) - (12, 30, 99)).max() < 6


def test_an_item_on_both_sides_is_refused(tmp_path: Path) -> None:
    file = inshop(tmp_path, classes=2, samples=2)
    file.write_text(file.read_text().replace("train", "query", 1))
    with pytest.raises(UserError, match=r"list_eval_partition\.txt: id_00000002 is in both halves"):
        InShopClothes(tmp_path).read_index()
