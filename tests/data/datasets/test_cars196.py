"""Cars-196 in both official layouts, tested on small replicas; one part of the closed-set split is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from miniatures import cars196_parts, cars196_pooled, cells, structs
from scipy.io import savemat

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Cars196
from levelfield.data.splits import split_classes
from levelfield.errors import UserError


def test_both_layouts_hold_the_same_classes(tmp_path: Path) -> None:
    cars196_pooled(tmp_path / "pooled", classes=4, samples=4)
    cars196_parts(tmp_path / "parts", classes=4, samples=4)
    pooled, parts = Cars196(tmp_path / "pooled").read_index(), Cars196(tmp_path / "parts").read_index()
    assert pooled.class_names == parts.class_names == tuple(f"Make {label} C/V Van 2012" for label in range(4))
    assert pooled.keys[5] == "car_ims/000006.jpg"
    assert pooled.labels.tolist() == sorted([0, 1, 2, 3] * 4)
    assert parts.keys[7:9] == ("cars_train/00008.jpg", "cars_test/00001.jpg")
    assert parts.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    image, label = Cars196(tmp_path / "parts")[9]
    assert label == 0
    assert abs(np.asarray(image)[18, 20].astype(int) - (0, 90, 99)).max() < 6  # its fourth picture


def test_the_labelled_test_annotations_may_lie_in_devkit(tmp_path: Path) -> None:
    folder = cars196_parts(tmp_path, classes=4)
    expected = Cars196(tmp_path).read_index().keys
    shutil.move(folder / "cars_test_annos_withlabels.mat", folder / "devkit")
    assert Cars196(tmp_path).read_index().keys == expected


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        (["cars_test"], "cars_test/"),
        (["cars_train"], "cars_train/"),
        (["cars_test", "cars_test_annos_withlabels.mat"], "cars_test/, cars_test_annos_withlabels.mat"),
        (["cars_test_annos_withlabels.mat"], "cars_test_annos_withlabels.mat"),
        (["devkit/cars_train_annos.mat", "cars_train"], "cars_train/, devkit/cars_train_annos.mat"),
    ],
)
def test_one_part_of_the_closed_set_split_is_refused(removed: list[str], named: str, tmp_path: Path) -> None:
    folder = cars196_parts(tmp_path)
    for name in removed:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    with pytest.raises(UserError, match=r"closed-set split: add ") as refused:
        Cars196(tmp_path).read_index()
    assert f"add {named}, " in str(refused.value)


def test_the_closed_set_split_cannot_be_asked_for(tmp_path: Path) -> None:
    cars196_parts(tmp_path)
    data = MetricDataModule(Cars196(tmp_path), split="official")
    with pytest.raises(UserError, match=r"--data\.split"):
        data.setup("fit")


def test_the_parts_hold_16185_images_and_are_split_by_class(tmp_path: Path) -> None:
    folder = tmp_path / "cars196"
    for name in ("cars_train", "cars_test", "devkit"):
        (folder / name).mkdir(parents=True)
    fields = ("class", "fname")
    for file, count in (("devkit/cars_train_annos.mat", 8144), ("cars_test_annos_withlabels.mat", 8041)):
        rows = [(number % 196 + 1, f"{number + 1:05d}.jpg") for number in range(count)]
        savemat(folder / file, {"annotations": structs(fields, rows)})
    savemat(folder / "devkit/cars_meta.mat", {"class_names": cells([f"Car {label}" for label in range(196)])})
    index = Cars196(tmp_path).read_index()
    assert (len(index.keys), len(index.class_names)) == (16185, 196)
    trainval, test = split_classes(index.labels)
    assert (trainval.tolist(), test.tolist()) == (list(range(98)), list(range(98, 196)))
