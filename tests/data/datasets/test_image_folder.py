"""A folder a class: order, what counts, what is refused, and what a fingerprint sees."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError


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


def test_selecting_keeps_labels_and_class_names() -> None:
    index = SampleIndex(("a", "b", "c"), np.array([0, 1, 1]), ("x", "y"))
    for chosen in ([2, 0], np.array([2, 0])):
        picked = index.select(chosen)
        assert (picked.keys, picked.labels.tolist(), picked.class_names) == (("c", "a"), [1, 0], ("x", "y"))
    assert index.select(index.labels == 1).keys == ("b", "c")
    assert index.select([]).keys == ()
    assert index.select(index.labels == 7).labels.shape == (0,)


def test_what_is_left_out_is_counted_with_its_reason(birds: Path) -> None:
    for name in ("__MACOSX/jay/x.png", "wren/Thumbs.db", "wren/raw/1.heic", "wren/2.HEIC", "flat.png", "wren/README"):
        (birds / name).parent.mkdir(parents=True, exist_ok=True)
        (birds / name).write_bytes(b"?")
    (birds / "wren" / "elsewhere").symlink_to(birds / "jay")
    (birds / "jay again").symlink_to(birds / "jay")
    (birds / "wren" / os.fsdecode(b"\xff.png")).write_bytes(b"?")
    report = ImageFolder(birds).verify()
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
        "1 class with one sample, which has no match: jay",
        "1 class to train and validate on: too few for folds",
    ]
    for number in range(10):
        (birds / f"{number}").mkdir()
        for name in ("a", "b"):
            Image.new("RGB", (4, 4)).save(birds / f"{number}" / f"{name}.png")
    identity = MetricDataModule(ImageFolder(birds), num_folds=2).identity()
    assert (identity["val_classes"], identity["train_classes"]) == (["0", "1", "2"], ["3", "4", "5"]), "not owl"


@pytest.mark.parametrize("suffix", [".avif", ".tga", ".JPE"])
def test_whatever_pillow_opens_here_is_read(suffix: str, birds: Path) -> None:
    if suffix not in Image.registered_extensions() and suffix != ".JPE":
        pytest.skip(f"this Pillow writes no {suffix}")
    kind = "JPEG" if suffix == ".JPE" else Image.registered_extensions()[suffix]
    Image.new("RGB", (16, 16), (250, 0, 0)).save(birds / "jay" / f"y{suffix}", kind)
    folder = ImageFolder(birds)
    assert f"jay/y{suffix}" in folder.read_index().keys
    assert folder.load(f"jay/y{suffix}").getpixel((8, 8))[0] > 240


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
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        ImageFolder(tmp_path / "nowhere").read_index()
    Image.new("RGB", (4, 4)).save(tmp_path / "flat.png")
    with pytest.raises(UserError, match="its own folder"):
        ImageFolder(tmp_path).read_index()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images"):
        ImageFolder(tmp_path).read_index()
