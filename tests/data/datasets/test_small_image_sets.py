"""Glyphs, Omniglot and Grocery Store: as published, and whole."""

import pickle
import unicodedata
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.datasets import GroceryStore, Omniglot
from levelfield.data.datasets.glyphs import Glyphs
from levelfield.data.splits import split_classes
from levelfield.data.verify import verify

LISTS = Path("grocery_store", "dataset")


def test_the_published_counts_of_omniglot(data_root: Path) -> None:
    omniglot = Omniglot(data_root)
    index = omniglot.read_index()
    assert (len(index.class_names), len(index.keys)) == (1623, 32460)
    assert set(np.bincount(index.labels)) == {20}
    background = {label for key, label in zip(index.keys, index.labels, strict=True) if "background" in key}
    assert background == set(range(964))
    assert len(set(index.coarse_names)) == 50
    assert [index.coarse_names[index.labels[at]] for at in (0, -1)] == [index.keys[at].split("/")[1] for at in (0, -1)]
    assert set(split_classes(index.labels)[0]) < background
    image = omniglot.load(index.keys[0])
    assert (image.size, image.mode) == ((105, 105), "RGB")
    assert set(np.unique(image)) == {0, 255}


def test_the_published_counts_of_grocery_store(data_root: Path) -> None:
    index = GroceryStore(data_root).read_index()
    assert (len(index.class_names), len(index.keys), len(set(index.keys))) == (81, 5421, 5421)
    parts = [key.partition("/")[0] for key in index.keys]
    assert [parts.count(part) for part in ("train", "val", "test")] == [2640, 296, 2485]  # the paper's section 3
    assert (index.class_names[0], index.class_names[80]) == ("Golden-Delicious", "Zucchini")
    assert [index.coarse_names[label] for label in (0, 4, 5, 80)] == ["Apple", "Apple", "Avocado", "Zucchini"]
    lists = [(data_root / LISTS / f"{part}.txt").read_text().splitlines() for part in ("train", "val", "test")]
    rows = [line.split(", ") for lines in lists for line in lines]
    official = {int(fine): int(coarse) for _, fine, coarse in rows}
    pairs = set(zip(index.coarse_labels(), (official[label] for label in index.labels), strict=True))
    assert len(pairs) == len(set(index.coarse_names)) == len(set(official.values())) == 43
    folders = {(label, Path(key).parent.name) for key, label in zip(index.keys, index.labels, strict=True)}
    assert len(folders) == 81


def test_drawings_are_read_from_the_zip_files(tmp_path: Path) -> None:
    Image.new("1", (5, 5), 1).save(drawing := BytesIO(), "PNG")
    (folder := tmp_path / "omniglot").mkdir()
    for part, alphabets in {"images_background": ("Latin", "Greek"), "images_evaluation": ("Tengwar",)}.items():
        with ZipFile(folder / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/", b"")
            for name in (f"{alphabet}/character01/0001_0{number}.png" for alphabet in alphabets for number in (2, 1)):
                archive.writestr(f"{part}/{name}", drawing.getvalue())
    omniglot = Omniglot(tmp_path)
    index = omniglot.read_index()
    assert index.class_names == ("Greek/character01", "Latin/character01", "Tengwar/character01")
    assert index.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert index.keys[3] == "images_background/Latin/character01/0001_02.png"
    assert {*omniglot.contents_of(index.keys)} == {sha256(drawing.getvalue()).hexdigest()}
    assert pickle.loads(pickle.dumps(omniglot)).load(index.keys[3]) == omniglot.load(index.keys[3])
    with pytest.raises(UserError, match=r"images_background\.zip is damaged"):
        omniglot.load("images_background/Greek/character01/9999_01.png")


def test_the_folder_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    with pytest.raises(UserError, match="omniglot needs a folder"):
        Omniglot().read_index()
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    with pytest.raises(UserError, match=rf"no folder .*{tmp_path}/omniglot.*--data\.root DIR or LEVELFIELD_DATA"):
        Omniglot().read_index()


def test_counts() -> None:
    index = Glyphs().read_index()
    # 1,348 letters are covered by 12 faces or more; 120 of them look like another.
    assert len(index.class_names) == 1348 - 120
    sizes = np.bincount(index.labels)
    assert (sizes.min(), sizes.max()) == (12, 16)
    assert list(index.class_names) == sorted(index.class_names)
    assert {unicodedata.category(name[-1]) for name in index.class_names} == {"Lu", "Ll"}
    names = Glyphs(num_classes=240).read_index().class_names
    for half in (names[:120], names[120:240]):
        assert sum(unicodedata.decomposition(name[-1]) != "" for name in half) > 40  # accents


def test_letters_are_drawn_whole_and_as_themselves() -> None:
    glyphs = Glyphs()
    for key in glyphs.read_index().keys[::7]:
        ink = 255 - np.asarray(glyphs.load(key))[:, :, 0].astype(int)
        assert ink.shape == (64, 64)
        assert ink.sum() > 20 * 255, f"{key} is blank"
        border = np.concatenate([ink[0], ink[-1], ink[:, 0], ink[:, -1]])
        assert border.max() < 128, f"{key} leaves the picture"
    assert np.array_equal(pickle.loads(pickle.dumps(glyphs)).load(key), glyphs.load(key))


def test_bad_arguments() -> None:
    with pytest.raises(UserError, match="from 1 to 1228"):
        Glyphs(num_classes=5000).read_index()
    with pytest.raises(UserError, match="image_size 3"):
        Glyphs(image_size=3)
    assert not verify(Glyphs(num_classes=30)).problems
