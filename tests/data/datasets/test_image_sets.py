"""The large image data sets in the layouts that their publishers give them, made here in miniature."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from miniatures import MINIATURES, cars196_parts, cars196_pooled, cells, cub200, dogs130, inshop, sop, structs
from own_images import image_options
from scipy.io import savemat
from tiny_fit import REPOSITORY

from levelfield.cli.data import named_datasets
from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import CUB200, Cars196, InShopClothes, StanfordOnlineProducts, TsinghuaDogs130
from levelfield.data.splits import split_classes

# Of the papers and pages that present them: classes and images.
PUBLISHED = {
    "cub200": (200, 11788),
    "cars196": (196, 16185),
    "sop": (22634, 120053),
    "inshop": (7982, 52712),
    "dogs130": (130, 70432),
}
# Images of each species of CUB-200-2011; the other species have 60. From the real lists: 11,788 in all.
FEWER_THAN_60 = {
    3: 58, 5: 44, 6: 41, 7: 53, 8: 48, 9: 59, 12: 56, 15: 58, 16: 58, 17: 57, 18: 45, 19: 59, 20: 59, 22: 56, 23: 59,
    24: 52, 28: 59, 32: 53, 33: 59, 34: 59, 37: 59, 39: 59, 43: 59, 58: 58, 60: 59, 65: 50, 75: 57, 78: 59, 84: 53,
    97: 59, 101: 50, 105: 49, 107: 59, 113: 50, 115: 59, 117: 59, 119: 59, 124: 59, 125: 59, 126: 59, 135: 59, 141: 58,
    149: 59, 151: 51, 153: 59, 157: 59, 160: 59, 166: 59, 168: 59, 169: 59, 178: 56, 179: 59, 181: 59, 187: 50, 190: 58,
    196: 59,
}  # fmt: skip
# Images of each folder of the low-resolution archive of Tsinghua Dogs, in the order of their names, which begin so.
DOGS = [
    1043, 1121, 1160, 1324, 1936, 200, 200, 200, 201, 202, 202, 202, 203, 203, 203, 203, 203, 205, 205, 206, 206, 206,
    206, 206, 207, 207, 207, 207, 207, 209, 209, 209, 209, 209, 210, 210, 211, 211, 211, 211, 211, 211, 211, 211, 214,
    214, 215, 215, 215, 216, 216, 216, 217, 217, 217, 217, 217, 219, 2192, 220, 220, 220, 221, 222, 223, 223, 223,
    224, 224, 224, 225, 225, 225, 226, 226, 227, 227, 228, 229, 230, 230, 230, 231, 231, 232, 232, 232, 233, 233, 234,
    234, 234, 2342, 235, 235, 235, 237, 237, 238, 241, 243, 245, 249, 249, 253, 253, 257, 258, 2594, 274, 276, 276,
    286, 2909, 2925, 3083, 316, 318, 329, 3336, 340, 3580, 361, 420, 480, 5355, 561, 7449, 798, 806,
]  # fmt: skip
# The publishers count 70,428 images, as the names of the folders do; the archive holds 70,432, and the sizes of
# Vasilev and D'yakonov's halves say that the other four are of breeds in their training half.
NOT_COUNTED = 4


def shade(dataset, position: int) -> np.ndarray:
    return np.asarray(dataset[position][0])[18, 20].astype(int)


@pytest.mark.parametrize("name", MINIATURES)
def test_two_steps_on_a_miniature(name: str, run, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MINIATURES[name](tmp_path / "data")
    kind = named_datasets()[name]
    assert (kind.num_classes_published, kind.num_samples_published) == PUBLISHED[name]
    monkeypatch.setattr(kind, "num_classes_published", 16)
    monkeypatch.setattr(kind, "num_samples_published", 64)
    root = ("--data.root", str(tmp_path / "data"))
    code, printed, _ = run("data", "verify", name, *root)
    assert (code, printed) == (0, f"{name}: 16 classes, 64 samples; as published, every sample opens\n")
    words = image_options(tiny, Path())[2:-4]
    code, _, complained = run(
        "fit", "--config", REPOSITORY / f"configs/data/{name}.yaml", *words, *root, "--model.loss", "ContrastiveLoss",
        "--data.num_folds", "2", "--data.steps_per_epoch", "2", "--trainer.max_epochs", "1", "--data.batch_size", "8",
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert code == 0, complained
    (checkpoint,) = tmp_path.rglob("best.ckpt")
    if name == "inshop":  # its queries are searched for in its gallery
        code, printed, complained = run("test", "--ckpt_path", checkpoint, *root, *words[-2:])
        assert (code, "map_at_r" in printed) == (0, True), complained


def test_cub200_is_read_from_its_three_lists_by_their_numbers(tmp_path: Path) -> None:
    folder = cub200(tmp_path, classes=5, samples=3)
    for name in ("image_class_labels.txt", "classes.txt"):
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join(reversed(lines)) + "\n")
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


def test_both_layouts_of_cars196_hold_the_same_classes(tmp_path: Path) -> None:
    cars196_pooled(tmp_path / "pooled", classes=4, samples=4)
    folder = cars196_parts(tmp_path / "parts", classes=4, samples=4)
    pooled, parts = Cars196(tmp_path / "pooled").read_index(), Cars196(tmp_path / "parts").read_index()
    assert pooled.class_names == parts.class_names == tuple(f"Make {label} C/V Van 2012" for label in range(4))
    assert pooled.keys[5] == "car_ims/000006.jpg"
    assert pooled.labels.tolist() == sorted([0, 1, 2, 3] * 4)
    assert parts.keys[7:9] == ("cars_train/00008.jpg", "cars_test/00001.jpg")
    assert parts.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert abs(shade(Cars196(tmp_path / "parts"), 9) - (0, 90, 99)).max() < 6  # its fourth picture
    shutil.move(folder / "cars_test_annos_withlabels.mat", folder / "devkit")
    assert Cars196(tmp_path / "parts").read_index().keys == parts.keys
    with pytest.raises(UserError, match=r"--data\.split"):  # the closed-set split
        MetricDataModule(Cars196(tmp_path / "parts"), split="official").setup("fit")


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


@pytest.mark.parametrize("official_folders", [True, False])
def test_halves_queries_and_gallery_of_inshop(official_folders: bool, tmp_path: Path) -> None:
    inshop(tmp_path, classes=16, samples=4, official_folders=official_folders)
    data = MetricDataModule(InShopClothes(tmp_path), num_folds=2)
    data.setup("fit")
    assert data.identity()["split"] == "official"
    trained_on = {*data.train_subset.class_names, *data.val_subset.class_names}
    assert trained_on == {f"id_{label + 1:08d}" for label in range(1, 16, 2)}
    data.setup("test")
    assert set(data.test_subset.class_names) == {f"id_{label + 1:08d}" for label in range(0, 16, 2)}
    assert Counter(data.test_subset.index.roles) == {"query": 16, "gallery": 16}
    assert abs(shade(InShopClothes(tmp_path), 5) - (12, 30, 99)).max() < 6


def test_the_published_split_of_dogs130(tmp_path: Path) -> None:
    for number, count in enumerate(DOGS):
        folder = tmp_path / "dogs130" / "low-resolution" / f"{count}-n{number:06d}-A breed"
        folder.mkdir(parents=True)
        (folder / "n1.jpg").touch()
    index = TsinghuaDogs130(tmp_path).read_index()
    images = np.array([int(name.partition("-")[0]) for name in index.class_names])
    assert (len(images), images.sum() + NOT_COUNTED) == PUBLISHED["dogs130"]
    train, test = split_classes(index.labels, "vasilev-dyakonov")
    # Vasilev and D'yakonov's table 1: 65 and 65 breeds, 36,904 and 33,528 images.
    assert (len(train), len(test)) == (65, 65)
    assert (images[train].sum() + NOT_COUNTED, images[test].sum()) == (36904, 33528)


def changed(build: Callable[[Path], Path], file: str, old: bytes = b"", new: bytes = b"") -> Callable[[Path], None]:
    """Builds a miniature in which a file has other bytes, or without `old`, is missing."""

    def make(root: Path) -> None:
        build(root)
        (path,) = root.rglob(file)
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1)) if old else path.unlink()

    return make


def annotations_without(field: str) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        folder = cars196_pooled(root)
        kept = [name for name in ("relative_im_path", "class") if name != field]
        savemat(folder / "cars_annos.mat", {"annotations": structs(kept, [(1,)]), "class_names": cells(["a"])})

    return build


def cars_meta(**variables: object) -> Callable[[Path], None]:
    return lambda root: savemat(cars196_parts(root) / "devkit/cars_meta.mat", variables)


def broken_annotations(root: Path) -> None:
    file = cars196_pooled(root) / "cars_annos.mat"
    file.write_bytes(file.read_bytes()[:2000])


LAYOUTS: list[tuple[str, Callable[[Path], object], str]] = [
    ("cub200", lambda root: None, r"no folder .*cub200"),
    (
        "cub200",
        lambda root: cub200(root / "cub200" / "CUB_200_2011"),
        r"cannot read .*CUB_200_2011/images\.txt \(No such file or directory\): .*levelfield data prepare",
    ),
    ("cub200", changed(cub200, "images.txt", b"3 001", b"3 7 001"), r"images\.txt: '3 7 001.*' instead of image_id"),
    ("cub200", changed(cub200, "image_class_labels.txt", b"5 2", b"5 two"), r"image_class_labels\.txt: '5 two'"),
    ("cub200", changed(cub200, "image_class_*", b"5 2\n"), r"labels\.txt has no class for image 5 of .*images\.txt"),
    ("cub200", changed(cub200, "classes.txt", b"4 004.Bird_3\n"), r"classes\.txt does not name class 4 of image 13"),
    ("cub200", changed(cub200, "images.txt", b"0_0001_1.jpg", b"0_0000_0.jpg"), r"names .*Bird_0_0000_0\.jpg 2 times"),
    ("cub200", changed(cub200, "classes.txt", b"Bird_1", b"Gar\xe7a"), r"classes\.txt is not text in UTF-8"),
    ("cars196", lambda root: (root / "cars196").mkdir(), r"has neither cars_annos\.mat"),
    ("cars196", broken_annotations, r"cars_annos\.mat is not a complete MATLAB file"),
    ("cars196", annotations_without("class"), r"annotations have no field class"),
    ("cars196", annotations_without("relative_im_path"), r"annotations have no field relative_im_path"),
    ("cars196", cars_meta(class_names=cells(["a", "b"])), r"an image of class 3, and names of 2 classes"),
    ("cars196", cars_meta(other=1), r"cars_meta\.mat has no variable class_names"),
    ("sop", changed(sop, "Ebay_test.txt"), r"cannot read .*Ebay_test\.txt"),
    ("sop", changed(sop, "Ebay_train.txt", b"2 1 1 bicycle", b"2 1 bicycle"), r"Ebay_train\.txt: '2 1 bicycle"),
    (
        "sop",
        changed(sop, "Ebay_test.txt", b"33 9 1", b"33 1 1"),
        r"class 1 of bicycle_final/110008_0\.JPG .*Ebay_train",
    ),
    ("inshop", changed(inshop, "list_eval_partition.txt"), r"cannot read .*list_eval_partition\.txt"),
    ("inshop", changed(inshop, "list_*.txt", b"64\n", b"65\n"), r"row 1 announces 65 images, but 64"),
    ("inshop", changed(inshop, "list_*.txt", b"query", b"probe"), r"probe of img/.* is not train, query or gallery"),
    ("inshop", changed(inshop, "list_*.txt", b"train", b"query"), r"list_.*\.txt: id_00000002 is in both halves"),
    ("dogs130", lambda root: (dogs130(root) / "low-resolution").rename(root / "high"), r"no folder .*/low-resolution"),
    ("dogs130", lambda root: (root / "dogs130/low-resolution").mkdir(parents=True), r"low-resolution has no folders"),
]


@pytest.mark.parametrize(("name", "build", "said"), LAYOUTS)
def test_a_wrong_layout_is_one_line(name: str, build, said: str, tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        named_datasets()[name](root=tmp_path).read_index()  # type: ignore[call-arg]
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


SAVED = {
    "CRLF": lambda content: content.replace(b"\n", b"\r\n"),
    "BOM": lambda content: b"\xef\xbb\xbf" + content,
    "no last newline": lambda content: content.rstrip(b"\n"),
    "blank lines": lambda content: content + b"\n  \n",
    "tabs": lambda content: content.replace(b" ", b"\t"),
}


@pytest.mark.parametrize("name", ["cub200", "sop", "inshop"])
def test_lists_as_other_programs_save_them(name: str, tmp_path: Path) -> None:
    MINIATURES[name](tmp_path)
    dataset = named_datasets()[name](root=tmp_path)  # type: ignore[call-arg]
    before = dataset.read_index()
    lists = {file: file.read_bytes() for file in (tmp_path / name).rglob("*.txt")}
    for save in SAVED.values():
        for file, content in lists.items():
            file.write_bytes(save(content))
        after = dataset.read_index()
        assert (after.keys, after.class_names) == (before.keys, before.class_names)
        assert after.labels.tolist() == before.labels.tolist()
