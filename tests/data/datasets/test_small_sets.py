"""Glyphs, the small sets of images and those of texts: as published, and whole."""

import pickle
import re
import unicodedata
from collections import Counter
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.datasets import CLINC150, Banking77, Glyphs, GroceryStore, News20, Omniglot
from levelfield.data.splits import split_classes
from levelfield.data.verify import verify

# Classes and samples, and the samples of the published parts; those of Grocery Store are in section 3 of its paper.
PUBLISHED = [
    (Omniglot, 1623, 32_460, {"images_background": 19_280, "images_evaluation": 13_180}),
    (GroceryStore, 81, 5_421, {"train": 2640, "val": 296, "test": 2485}),
    (Banking77, 77, 13_083, {"train.csv": 10_003, "test.csv": 3_080}),
    (CLINC150, 150, 22_500, {"train": 100 * 150, "val": 20 * 150, "test": 30 * 150}),
    (News20, 20, 18_846, {"20news-bydate-train": 11_314, "20news-bydate-test": 7_532}),
]


@pytest.mark.parametrize(("kind", "classes", "samples", "parts"), PUBLISHED)
def test_classes_and_samples_are_as_published(kind, classes, samples, parts, data_root: Path) -> None:
    dataset = kind(data_root)
    index = dataset.read_index()
    assert (len(set(index.class_names)), len(index.keys), len(set(index.keys))) == (classes, samples, samples)
    assert Counter(re.split("[/ [\\]]", key)[0] for key in index.keys) == parts
    if dataset.modality == "text" and kind is not News20:
        assert verify(dataset).problems == []


def test_characters_of_omniglot(data_root: Path) -> None:
    omniglot = Omniglot(data_root)
    index = omniglot.read_index()
    assert set(np.bincount(index.labels)) == {20}
    background = {label for key, label in zip(index.keys, index.labels, strict=True) if "background" in key}
    assert background == set(range(964))
    assert len(set(index.coarse_names)) == 50
    assert [index.coarse_names[index.labels[at]] for at in (0, -1)] == [index.keys[at].split("/")[1] for at in (0, -1)]
    image = omniglot.load(index.keys[0])
    assert (image.size, image.mode, set(np.unique(image))) == ((105, 105), "RGB", {0, 255})


def test_coarse_classes_of_grocery_store(data_root: Path) -> None:
    index = GroceryStore(data_root).read_index()
    assert (index.class_names[0], index.class_names[80]) == ("Golden-Delicious", "Zucchini")
    assert [index.coarse_names[label] for label in (0, 4, 5, 80)] == ["Apple", "Apple", "Avocado", "Zucchini"]
    lists = [data_root / "grocery_store/dataset" / f"{part}.txt" for part in ("train", "val", "test")]
    rows = [line.split(", ") for file in lists for line in file.read_text().splitlines()]
    official = {int(fine): int(coarse) for _, fine, coarse in rows}
    pairs = set(zip(index.coarse_labels(), (official[label] for label in index.labels), strict=True))
    assert len(pairs) == len(set(index.coarse_names)) == len(set(official.values())) == 43
    assert len({(label, Path(key).parent.name) for key, label in zip(index.keys, index.labels, strict=True)}) == 81


def test_a_text_of_each_set_with_its_class(data_root: Path) -> None:
    banking, clinc = Banking77(data_root), CLINC150(data_root)
    assert banking.load("train.csv row 2") == "I am still waiting on my card?"
    assert banking.class_names[banking.read_index().labels[0]] == "card_arrival"
    index = clinc.read_index()
    assert "oos" not in index.class_names
    assert set(np.bincount(index.coarse_labels())) == {15 * 150}, "ten domains of 15 intents"
    assert index.coarse_names[index.class_names.index("translate")] == "travel"
    assert clinc.load("train[0]") == "what expression would i use to say i love you if i were an italian"


def test_the_halves_of_news20_are_those_of_vasilev_and_dyakonov(data_root: Path) -> None:
    news = News20(data_root)
    index = news.read_index()
    train, test = split_classes(index.labels, "vasilev-dyakonov")
    assert train.tolist() == [0, 3, 5, 7, 9, 11, 12, 14, 15, 16]
    assert (np.isin(index.labels, train).sum(), np.isin(index.labels, test).sum()) == (9_622, 9_224)
    post = news.load("20news-bydate-test/alt.atheism/53068")
    assert post.startswith("From: decay@cbnewsj.cb.att.com (dean.kaflowitz)\nSubject: Re: about the bible quiz answers")
    assert post.endswith("Dean Kaflowitz")


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
