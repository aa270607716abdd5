"""Folders and tables of images: what counts, what is refused with its row or reason, splits and roles."""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_images import own_images
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data import ImageTable
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.data.images import open_image
from levelfield.data.verify import verify


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    for name in ("wren/b.png", "wren/a.JPG", "wren/young/c.png", "jay/x.png", "jay/.hidden.png", ".git/y.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "red").save(file, "PNG")
    (tmp_path / "jay" / "notes.txt").write_text("seen in May")
    (tmp_path / "owl").mkdir()
    return tmp_path


def test_classes_and_samples_are_in_order_of_their_names(birds: Path) -> None:
    folder = ImageFolder(birds)
    index = folder.read_index()
    assert index.class_names == ("jay", "owl", "wren")
    assert index.keys == ("jay/x.png", "wren/a.JPG", "wren/b.png", "wren/young/c.png")
    assert index.labels.tolist() == [0, 2, 2, 2]
    image, label = folder[3]
    assert (len(folder), image.mode, label) == (4, "RGB", 2)
    (birds / "jay" / "x.png").unlink()
    assert len(folder.read_index().keys) == 3


def test_what_is_left_out_is_counted_with_its_reason(birds: Path) -> None:
    for name in ("__MACOSX/jay/x.png", "wren/Thumbs.db", "wren/raw/1.heic", "wren/2.HEIC", "flat.png", "wren/README"):
        (birds / name).parent.mkdir(parents=True, exist_ok=True)
        (birds / name).write_bytes(b"?")
    (birds / "wren" / "elsewhere").symlink_to(birds / "jay")
    (birds / "jay again").symlink_to(birds / "jay")
    (birds / "wren" / os.fsdecode(b"\xff.png")).write_bytes(b"?")
    report = verify(ImageFolder(birds))
    assert report.overview == [
        "image_folder: 2 classes, 4 samples",
        "2 left out: .heic, not an image that Pillow opens here",
        "1 left out: .txt, not an image that Pillow opens here",
        "1 left out: Thumbs.db, a file of another program",
        "1 left out: __MACOSX, a file of another program",
        "2 left out: a link to a folder; put the images there",
        "1 left out: a name that is not UTF-8 or has several lines; rename it",
        "2 left out: hidden (the name begins with a dot)",
        "1 left out: next to the class folders, in none of them",
        "1 left out: no suffix, not an image that Pillow opens here",
        "1 class without a sample, in no fold: owl",
        "1 class with one sample, which balanced batches leave out and no score takes as a query: jay",
        "1 class to train and validate on: too few for folds",
    ]
    for number in range(10):
        (birds / f"{number}").mkdir()
        for name in ("a", "b"):
            Image.new("RGB", (4, 4)).save(birds / f"{number}" / f"{name}.png")
    identity = MetricDataModule(ImageFolder(birds), num_folds=2).identity()
    assert (identity["val_classes"], identity["train_classes"]) == (["0", "1", "2"], ["3", "4", "5"]), "not owl"


def test_class_folders_may_be_one_level_deeper(tmp_path: Path) -> None:
    for name in ("Train/jay/1.png", "Train/wren/1.png", "test/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    with pytest.raises(UserError, match=r"only Train, test, .*\(.*Train\)"):
        ImageFolder(tmp_path).read_index()
    assert ImageFolder(tmp_path / "Train").class_names == ("jay", "wren")
    (tmp_path / "test").rename(tmp_path / "__MACOSX")  # as in a zip with one folder around its classes
    with pytest.raises(UserError, match=r"only Train, .*\(.*Train\)"):
        ImageFolder(tmp_path).read_index()
    (tmp_path / "__MACOSX").rename(tmp_path / "test")
    (tmp_path / "Train" / "jay").rename(tmp_path / "jay")  # then a train is a class, too
    assert ImageFolder(tmp_path).class_names == ("Train", "jay", "test")


def test_missing_empty_and_flat_folders(tmp_path: Path) -> None:
    (tmp_path / "empty" / "class").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "flat" / "1.png")
    for folder, said in (("nowhere", "no folder .*nowhere"), ("flat", "its own folder"), ("empty", "no images")):
        with pytest.raises(UserError, match=said):
            ImageFolder(tmp_path / folder).read_index()


def table(folder: Path, text: str) -> ImageTable:
    file = folder / "images.csv"
    file.write_text(text, encoding="utf-8")
    return ImageTable(file)


@pytest.mark.parametrize(
    ("text", "keys", "names", "labels"),
    [
        ("path,label,by\na.png,10,x\nb.png,9,y\nc.png,10,z\nd.png,-1,x\n", "abcd", ("-1", "9", "10"), [2, 1, 2, 0]),
        ('\ufefflabel, path\nwren, a.png\n"jay, x", b.png\n10, c.png\n', "abc", ("10", "jay, x", "wren"), [2, 1, 0]),
        ('"Path";Label\n./a.png;x, y\nb.png;z\n', "ab", ("x, y", "z"), [0, 1]),
        ("Path\tLABEL\na.png\tx\n", "a", ("x",), [0]),
        ("Path|label\na.png|3\nb.png|900\n", "ab", ("3", "900"), [0, 1]),
    ],
)
def test_whole_numbers_are_sorted_as_numbers_names_as_names_in_tables_of_any_kind(
    text: str, keys: str, names: tuple, labels: list, tmp_path: Path
) -> None:
    images, paths = table(tmp_path, text), [f"{key}.png" for key in keys]
    pd.DataFrame({"path": paths, "label": [names[label] for label in labels]}).to_parquet(tmp_path / "t.parquet")
    for index in (images.read_index(), ImageTable(tmp_path / "t.parquet").read_index()):
        assert index.keys == tuple(paths)
        assert (index.class_names, index.labels.tolist()) == (names, labels)


@pytest.mark.parametrize(
    ("on_disk", "in_table", "remedy"),
    [
        ("cafe\u0301.png", "caf\u00e9.png", "NFD"),
        ("caf\u00e9.png", "cafe\u0301.png", "NFC"),
        ("cafe.png", ".\\cafe.png", "/"),
    ],
)
def test_another_spelling_of_a_missing_file_is_named(on_disk: str, in_table: str, remedy: str, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / on_disk)
    (fault,) = verify(table(tmp_path, f"path,label\n{in_table},0\n")).problems
    assert "row 2" in fault
    assert f"write {remedy}" in fault.replace("its letters in the Unicode form ", "")
    with pytest.raises(UserError, match="write"):
        open_image(tmp_path / in_table)


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("path,label\n")
    frame = pd.DataFrame({"path": ["a", "b"], "label": [2**53 + 1, None]}, dtype=object)
    frame.to_parquet(tmp_path / "gap.parquet")
    pd.DataFrame({"path": [b"a", b"\xff"], "label": [1, 2]}).to_parquet(tmp_path / "bytes.parquet")
    pd.DataFrame({"path": ["a"], "label": [["x", "y"]]}).to_parquet(tmp_path / "lists.parquet")
    pd.DataFrame({"path": [{"bytes": b"?", "path": "a.png"}], "label": [1]}).to_parquet(tmp_path / "inside.parquet")
    for name, said in {
        "nowhere.csv": r"no table .*nowhere\.csv",
        "table.xlsx": r"give a \.csv, .* or \.parquet table",
        "text.parquet": "not a readable Parquet file",
        "gap.parquet": "row 2: label is empty",
        "bytes.parquet": "row 2: path is not UTF-8",
        "inside.parquet": "the column path has the type struct<.*>: give one value per row",
        "lists.parquet": "the column label has the type list<.*>: give one value per row",
    }.items():
        with pytest.raises(UserError, match=said):
            ImageTable(tmp_path / name).read_index()
    frame[:1].to_parquet(tmp_path / "whole.parquet")
    assert ImageTable(tmp_path / "whole.parquet").class_names == (str(2**53 + 1),)


@pytest.mark.parametrize(
    ("chosen", "column", "value", "message"),
    [
        (r"1_2\.png", "role", "", r"test sample 1_2\.png has no role: give each test sample"),
        (r"\d*[13579]_0\.png", "role", "gallery", "no test class has the roles query and gallery"),
        (r"\d*[13579]_.*", "role", "query", "no test class has the roles query and gallery"),
        (r".*", "split", "train", "set the column split to test"),
    ],
)
def test_roles_or_halves_that_cannot_be_tested_are_refused_before_training(
    chosen: str, column: str, value: str, message: str, tmp_path: Path
) -> None:
    frame = pd.read_csv(table := own_images(tmp_path))
    numbers = frame["path"].str.extract(r"(\d+)_(\d+)").astype(int)  # of the class and of its sample
    frame["split"] = np.where(numbers[0] % 2, "test", "train")
    if column == "role":
        frame["role"] = np.where(numbers[0] % 2, np.where(numbers[1] == 0, "query", "gallery"), "")
    frame.loc[frame["path"].str.fullmatch(chosen), column] = value
    frame.to_csv(table, index=False)
    with pytest.raises(UserError, match=message):
        MetricDataModule(ImageTable(table)).setup("fit")
    if column == "role":
        assert re.search(message, verify(ImageTable(table)).problems[0])
