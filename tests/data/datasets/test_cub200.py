"""CUB-200-2011 from its three lists, tested on a small replica in the official layout."""

from pathlib import Path

import numpy as np
from miniatures import cub200

from levelfield.data.datasets import CUB200
from levelfield.data.splits import Split, split_classes

# Images of each species; the other species have 60. From the real lists: 11,788 in all.
FEWER_THAN_60 = {
    3: 58, 5: 44, 6: 41, 7: 53, 8: 48, 9: 59, 12: 56, 15: 58, 16: 58, 17: 57, 18: 45, 19: 59, 20: 59, 22: 56, 23: 59,
    24: 52, 28: 59, 32: 53, 33: 59, 34: 59, 37: 59, 39: 59, 43: 59, 58: 58, 60: 59, 65: 50, 75: 57, 78: 59, 84: 53,
    97: 59, 101: 50, 105: 49, 107: 59, 113: 50, 115: 59, 117: 59, 119: 59, 124: 59, 125: 59, 126: 59, 135: 59, 141: 58,
    149: 59, 151: 51, 153: 59, 157: 59, 160: 59, 166: 59, 168: 59, 169: 59, 178: 56, 179: 59, 181: 59, 187: 50, 190: 58,
    196: 59,
}  # fmt: skip


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


def test_the_published_halves(tmp_path: Path) -> None:
    folder = cub200(tmp_path, classes=1, samples=1)
    counts = [FEWER_THAN_60.get(species, 60) for species in range(1, 201)]
    species_of = [species for species, count in enumerate(counts, start=1) for _ in range(count)]
    (folder / "images.txt").write_text("".join(f"{i} {s:03d}.Bird/{i}.jpg\n" for i, s in enumerate(species_of, 1)))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {s}\n" for i, s in enumerate(species_of, 1)))
    (folder / "classes.txt").write_text("".join(f"{species} {species:03d}.Bird\n" for species in range(1, 201)))
    index = CUB200(tmp_path).read_index()
    assert (len(index.class_names), len(index.keys)) == (200, 11788)
    assert (CUB200.num_classes_published, CUB200.num_samples_published) == (200, 11788)

    def sizes(split: Split) -> list[tuple[int, int]]:
        return [(len(half), int(np.isin(index.labels, half).sum())) for half in split_classes(index.labels, split)]

    assert sizes("half") == [(100, 5864), (100, 5924)]  # Song et al., CVPR 2016
    assert sizes("vasilev-dyakonov") == [(100, 5897), (100, 5891)]  # Vasilev and D'yakonov, table 1
