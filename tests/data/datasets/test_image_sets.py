"""The large image data sets in the layouts that their publishers give them, made here in miniature."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from miniatures import MINIATURES, cars196, cub200, inshop, sop
from own_images import image_options
from refused import succeeded
from tiny_fit import REPOSITORY

from levelfield.cli.data import named_datasets
from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import CUB200, Cars196, InShopClothes, StanfordOnlineProducts
from levelfield.data.splits import split_classes

# Images of each species of CUB-200-2011; the other species have 60. From the real lists: 11,788 in all.
FEWER_THAN_60 = {
    3: 58, 5: 44, 6: 41, 7: 53, 8: 48, 9: 59, 12: 56, 15: 58, 16: 58, 17: 57, 18: 45, 19: 59, 20: 59, 22: 56, 23: 59,
    24: 52, 28: 59, 32: 53, 33: 59, 34: 59, 37: 59, 39: 59, 43: 59, 58: 58, 60: 59, 65: 50, 75: 57, 78: 59, 84: 53,
    97: 59, 101: 50, 105: 49, 107: 59, 113: 50, 115: 59, 117: 59, 119: 59, 124: 59, 125: 59, 126: 59, 135: 59, 141: 58,
    149: 59, 151: 51, 153: 59, 157: 59, 160: 59, 166: 59, 168: 59, 169: 59, 178: 56, 179: 59, 181: 59, 187: 50, 190: 58,
    196: 59,
}  # fmt: skip


def shade(dataset, position: int) -> np.ndarray:
    return np.asarray(dataset[position][0])[18, 20].astype(int)


@pytest.mark.parametrize("name", MINIATURES)
def test_two_steps_on_a_miniature(name: str, run, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MINIATURES[name](tmp_path / "data")
    kind = named_datasets()[name]
    monkeypatch.setattr(kind, "num_classes_published", 16)
    monkeypatch.setattr(kind, "num_samples_published", 64)
    root = ("--data.root", str(tmp_path / "data"))
    verified = succeeded(run("data", "verify", name, *root))
    assert verified == f"{name}: 16 classes, 64 samples; as published, every sample opens\n"
    words = image_options(tiny, Path())[2:-4]
    words += [*root, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1", "--output", tmp_path / "out"]
    words += ["--data.num_folds", "2", "--data.steps_per_epoch", "2", "--data.batch_size", "8"]
    printed = succeeded(run("fit", "--config", REPOSITORY / f"configs/data/{name}.yaml", *words))
    split = "official" if name == "inshop" else "half"
    assert f"split {split}, fold 0 of 2: 4 classes trained on, 4 validated" in printed


def test_cub200_is_read_from_its_three_lists_by_the_numbers_of_images(tmp_path: Path) -> None:
    folder = cub200(tmp_path, classes=5, samples=3)
    labels = folder / "image_class_labels.txt"
    labels.write_text("\n".join(reversed(labels.read_text().splitlines())) + "\n")
    index = CUB200(tmp_path).read_index()
    assert index.class_names == ("001.Bird_0", "002.Bird_1", "003.Bird_2", "004.Bird_3", "005.Bird_4")
    assert index.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert index.keys[4] == "002.Bird_1/Bird_1_0001_4.jpg"
    assert index.test_classes is None  # the official split has each species on both sides
    assert abs(shade(CUB200(tmp_path), 4) - (12, 30, 99)).max() < 6


def test_the_published_halves_of_cub200() -> None:
    counts = [FEWER_THAN_60.get(species, 60) for species in range(1, 201)]
    labels = np.repeat(np.arange(200), counts)
    for split, sizes in {
        "half": [5864, 5924],  # Song et al., CVPR 2016
        "vasilev-dyakonov": [5897, 5891],  # Vasilev and D'yakonov, table 1
    }.items():
        assert [int(np.isin(labels, half).sum()) for half in split_classes(labels, split)] == sizes


def test_the_parts_of_cars196_are_merged(tmp_path: Path) -> None:
    cars196(tmp_path, classes=4, samples=4)
    index = Cars196(tmp_path).read_index()
    assert index.class_names == tuple(f"Make {label} C/V Van 2012" for label in range(4))
    assert index.keys[7:9] == ("cars_train/00008.jpg", "cars_test/00001.jpg")
    assert index.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert abs(shade(Cars196(tmp_path), 9) - (0, 90, 99)).max() < 6  # its fourth picture
    with pytest.raises(UserError, match=r"--data\.split"):  # the closed-set split
        MetricDataModule(Cars196(tmp_path), split="official").setup("fit")


def test_classes_of_sop_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = sop(tmp_path, classes=12, samples=2)
    index = StanfordOnlineProducts(tmp_path).read_index()
    assert index.class_names[:3] == ("bicycle/1", "chair/2", "bicycle/3")
    assert index.class_names[9:] == ("chair/10", "bicycle/11", "chair/12")  # by number, not by name
    assert index.test_classes == (6, 7, 8, 9, 10, 11)
    gaps = (folder / "Ebay_test.txt").read_text().replace(" 12 2 ", " 900 2 ")
    (folder / "Ebay_test.txt").write_text(gaps)
    index = StanfordOnlineProducts(tmp_path).read_index()
    assert index.labels.tolist() == sorted([*range(12)] * 2)
    assert index.class_names[11] == "chair/900"


def test_halves_queries_and_gallery_of_inshop(tmp_path: Path) -> None:
    inshop(tmp_path, classes=16, samples=4)
    data = MetricDataModule(InShopClothes(tmp_path), num_folds=2)
    data.setup("fit")
    assert data.identity()["split"] == "official"
    trained_on = {*data.train_subset.class_names, *data.val_subset.class_names}
    assert trained_on == {f"id_{label + 1:08d}" for label in range(1, 16, 2)}
    data.setup("test")
    assert set(data.test_subset.class_names) == {f"id_{label + 1:08d}" for label in range(0, 16, 2)}
    assert Counter(data.test_subset.index.roles) == {"query": 16, "gallery": 16}
    assert abs(shade(InShopClothes(tmp_path), 5) - (12, 30, 99)).max() < 6


def changed(build: Callable[[Path], Path], file: str, old: bytes = b"", new: bytes = b"") -> Callable[[Path], None]:
    """Builds a miniature in which a file has other bytes, or without `old`, is missing."""

    def make(root: Path) -> None:
        build(root)
        (path,) = root.rglob(file)
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1)) if old else path.unlink()

    return make


def with_file(place: str, content: bytes) -> Callable[[Path], object]:
    """Writes one file of a data set."""

    def make(root: Path) -> None:
        (root / place).parent.mkdir(parents=True)
        (root / place).write_bytes(content)

    return make


CLASSES, CLINC = "grocery_store/dataset/classes.csv", "clinc150/data_full.json"
LAYOUTS: list[tuple[str, Callable[[Path], object], str]] = [
    ("cub200", lambda root: None, r"no folder .*cub200"),
    ("cub200", changed(cub200, "images.txt"), r"cannot read .*images\.txt \(No such .*: move .*data prepare"),
    ("cub200", changed(cub200, "images.txt", b"3 001", b"3 7 001"), r"CUB_200_2011 is damaged"),
    ("cub200", changed(cub200, "image_class_*", b"5 2\n"), r"CUB_200_2011 is damaged \(KeyError: '5'\)"),
    ("cub200", changed(cub200, "classes.txt", b"Bird_1", b"Gar\xe7a"), r"classes\.txt is damaged \(UnicodeDecodeError"),
    ("cars196", changed(cars196, "cars_test_annos_withlabels.mat"), r"cannot read .*cars_test_annos_withlabels\.mat"),
    ("cars196", changed(cars196, "cars_meta.mat", b"class_names", b"class_nones"), r"cars_meta\.mat is damaged"),
    ("sop", changed(sop, "Ebay_train.txt", b"2 1 1 bicycle", b"2 1 bicycle"), r"Stanford_Online_Products is damaged"),
    ("inshop", changed(inshop, "list_*.txt", b"query", b"probe"), r"list_eval_partition\.txt is damaged"),
    ("omniglot", with_file("omniglot/notes", b""), r"cannot read .*images_background\.zip .*data prepare omniglot"),
    ("omniglot", with_file("omniglot/images_background.zip", b"PK half"), r"images_background\.zip is damaged"),
    ("grocery_store", with_file(CLASSES, b"name,id,kind\nApple,0,Fruit\n"), r"cannot read .*train\.txt"),
    ("grocery_store", with_file(CLASSES, b"name,id,kind\nApple,zero,Fruit\n"), r"dataset is damaged"),
    ("banking77", with_file("banking77/train.csv", b"text,category\nhi,a\n"), r"read .*test\.csv"),
    ("banking77", with_file("banking77/train.csv", b"text,category\nhi\n"), r"train\.csv is damaged"),
    ("clinc150", with_file(CLINC, b"{"), r"data_full\.json is damaged .*download it again"),
    ("clinc150", with_file(CLINC, b"[1]"), r"data_full\.json is damaged"),
    ("news20", with_file("20newsgroups/20news-bydate.tar.gz", b"<html>"), r"20news-bydate\.tar\.gz"),
]


@pytest.mark.parametrize(("name", "build", "said"), LAYOUTS)
def test_a_wrong_layout_is_one_line(name: str, build, said: str, tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        named_datasets()[name](root=tmp_path).read_index()  # type: ignore[call-arg]
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
