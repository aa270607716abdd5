"""Omniglot as published, and folders and zip files alike."""

import pickle
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image

from levelfield.data.datasets.omniglot import Omniglot
from levelfield.data.splits import split_classes
from levelfield.errors import UserError


def test_the_published_counts(data_root: Path) -> None:
    omniglot = Omniglot(data_root)
    index = omniglot.read_index()
    assert (len(index.class_names), len(index.keys)) == (1623, 32460)
    assert set(np.bincount(index.labels)) == {20}
    background = {label for key, label in zip(index.keys, index.labels, strict=True) if "background" in key}
    assert background == set(range(964))
    assert len(set(index.coarse_names)) == 50
    assert [index.coarse_names[index.labels[at]] for at in (0, -1)] == [index.keys[at].split("/")[1] for at in (0, -1)]
    trainval, _ = split_classes(index.labels)
    assert set(trainval) < background
    image = omniglot.load(index.keys[0])
    assert (image.size, image.mode) == ((105, 105), "RGB")
    assert set(np.unique(image)) == {0, 255}


def test_extracted_folders_give_what_the_zip_files_give(tmp_path: Path) -> None:
    drawn = {"images_background": ("Latin", "Greek"), "images_evaluation": ("Tengwar",)}
    for root in ("zipped", "extracted"):
        for part, alphabets in drawn.items():
            for alphabet in alphabets:
                for drawing in ("0001_02.png", "0001_01.png"):
                    file = tmp_path / root / "omniglot" / part / alphabet / "character01" / drawing
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.new("1", (5, 5), 1).save(file)
    for part in drawn:
        folder = tmp_path / "zipped" / "omniglot"
        with ZipFile(folder / f"{part}.zip", "w") as archive:
            for file in sorted((folder / part).rglob("*"), reverse=True):
                archive.write(file, file.relative_to(folder))
        (folder / part).rename(tmp_path / part)
    zipped, extracted = Omniglot(tmp_path / "zipped"), Omniglot(tmp_path / "extracted")
    index = zipped.read_index()
    assert index.class_names == ("Greek/character01", "Latin/character01", "Tengwar/character01")
    assert index.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert extracted.read_index().keys == index.keys
    assert extracted.fingerprint(index) == zipped.fingerprint(index)
    copy = pickle.loads(pickle.dumps(zipped))
    assert copy.load(index.keys[3]) == extracted.load(index.keys[3])
    with pytest.raises(UserError, match=r"images_background\.zip"):
        zipped.load("images_background/Greek/character01/9999_01.png")


def test_missing_and_broken_zip_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*omniglot.*--data\.root DIR or LEVELFIELD_DATA"):
        Omniglot(tmp_path).read_index()
    (tmp_path / "omniglot").mkdir()
    with pytest.raises(UserError, match=r"neither .*images_background\.zip"):
        Omniglot(tmp_path).read_index()
    (tmp_path / "omniglot" / "images_background.zip").write_bytes(b"PK half a download")
    with pytest.raises(UserError, match="not a complete zip file"):
        Omniglot(tmp_path).read_index()


def test_the_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    with pytest.raises(UserError, match="omniglot needs a data folder"):
        Omniglot().read_index()
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    with pytest.raises(UserError, match=str(tmp_path / "omniglot")):
        Omniglot().read_index()
