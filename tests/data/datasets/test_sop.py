"""Stanford Online Products from its two lists, at full length without the images."""

from pathlib import Path

import numpy as np
import pytest
from miniatures import sop

from levelfield.data.datasets import StanfordOnlineProducts
from levelfield.data.splits import split_classes
from levelfield.errors import UserError


@pytest.fixture(scope="module")
def full_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of the published length: 59,551 images of classes 1 to 11318, 60,502 of 11319 to 22634."""
    root = tmp_path_factory.mktemp("sop")
    folder = root / "sop" / "Stanford_Online_Products"
    folder.mkdir(parents=True)
    image = 0
    for part, first, classes, images in (("train", 1, 11318, 59551), ("test", 11319, 11316, 60502)):
        rows = ["image_id class_id super_class_id path"]
        for number in range(images):
            image += 1
            class_id = first + number * classes // images
            rows.append(f"{image} {class_id} 1 bicycle_final/{class_id}_{number}.JPG")
        (folder / f"Ebay_{part}.txt").write_text("\n".join(rows) + "\n")
    return root


def test_the_published_counts_and_both_halves(full_lists: Path) -> None:
    index = StanfordOnlineProducts(full_lists).read_index()
    assert (len(index.keys), len(index.class_names)) == (120053, 22634)
    trainval, test = split_classes(index.labels, "half")
    assert (len(trainval), len(test)) == (11317, 11317)
    official_trainval, official_test = split_classes(index.labels, "official", index.test_classes)
    assert (len(official_trainval), len(official_test)) == (11318, 11316)
    assert set(official_trainval) - set(trainval) == {11317}  # the one class between the two splits
    counts = [int(np.isin(index.labels, half).sum()) for half in (official_trainval, official_test)]
    assert counts == [59551, 60502]  # Fehervari et al.


def test_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = sop(tmp_path, classes=12, samples=2)
    index = StanfordOnlineProducts(tmp_path).read_index()
    assert index.class_names[:3] == ("bicycle/1", "chair/2", "bicycle/3")
    assert index.class_names[9:] == ("chair/10", "bicycle/11", "chair/12")  # by number, not by name
    assert index.labels.tolist() == sorted([*range(12)] * 2)
    assert index.test_classes == (6, 7, 8, 9, 10, 11)
    assert StanfordOnlineProducts(tmp_path)[3][0].size == (40, 36)
    gaps = (folder / "Ebay_test.txt").read_text().replace(" 12 2 ", " 900 2 ")
    (folder / "Ebay_test.txt").write_text(gaps)
    index = StanfordOnlineProducts(tmp_path).read_index()
    assert index.labels.tolist() == sorted([*range(12)] * 2)
    assert index.class_names[11] == "chair/900"


def test_a_class_in_both_lists_is_refused(tmp_path: Path) -> None:
    folder = sop(tmp_path, classes=4, samples=2)
    with (folder / "Ebay_test.txt").open("a") as file:
        file.write("9 1 1 bicycle_final/9_9.JPG\n")
    with pytest.raises(UserError, match=r"Ebay_test\.txt: class 1 of bicycle_final/9_9\.JPG .*Ebay_train\.txt"):
        StanfordOnlineProducts(tmp_path).read_index()
