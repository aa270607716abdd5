"""CUB-200-2011 from its three lists, tested on a small replica in the official layout."""

from pathlib import Path

import numpy as np
from miniatures import cub200

from levelfield.data.datasets import CUB200
from levelfield.data.splits import split_classes


def test_images_and_classes_are_in_the_lists_order(tmp_path: Path) -> None:
    cub200(tmp_path, classes=5, samples=3)
    index = CUB200(tmp_path).read_index()
    assert index.class_names == ("001.Bird_0", "002.Bird_1", "003.Bird_2", "004.Bird_3", "005.Bird_4")
    assert index.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert index.keys[4] == "002.Bird_1/Bird_1_0001_4.jpg"
    assert index.test_classes is None  # the official split has each species on both sides
    image, label = CUB200(tmp_path)[4]
    assert (image.size, image.mode, label) == ((40, 36), "RGB", 1)
    assert abs(np.asarray(image)[18, 20].astype(int) - (12, 30, 99)).max() < 6


def test_the_lists_are_joined_by_their_numbers_not_by_their_rows(tmp_path: Path) -> None:
    folder = cub200(tmp_path, classes=2, samples=2)
    before = CUB200(tmp_path).read_index()
    for name in ("image_class_labels.txt", "classes.txt"):
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join(reversed(lines)) + "\n")
    after = CUB200(tmp_path).read_index()
    assert after.labels.tolist() == before.labels.tolist()
    assert after.class_names == before.class_names


def test_a_hundred_species_are_trained_on_and_the_others_tested(tmp_path: Path) -> None:
    folder = cub200(tmp_path, classes=1, samples=1)
    numbers = range(1, 11789)
    # As many images as there are, spread evenly: the lists do not say how many each species has.
    (folder / "images.txt").write_text("".join(f"{i} {i % 200 + 1:03d}.Bird/{i}.jpg\n" for i in numbers))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {i % 200 + 1}\n" for i in numbers))
    (folder / "classes.txt").write_text("".join(f"{i} {i:03d}.Bird\n" for i in range(1, 201)))
    index = CUB200(tmp_path).read_index()
    assert (len(index.keys), len(index.class_names)) == (CUB200.num_samples_published, CUB200.num_classes_published)
    trainval, test = split_classes(index.labels)
    assert (trainval.tolist(), test.tolist()) == (list(range(100)), list(range(100, 200)))
