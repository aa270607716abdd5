"""Cached images are those of the files, decoded once by all that want them, and whole whatever happens."""

import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from full_disk import full_disk
from own_images import noise_images
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data import Glyphs, ImageTable, ImageTransforms
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.image_cache import LOOKED_AT, cached_images

TRANSFORMS = ImageTransforms(crop_size=24, resize=32)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """16 classes of 4 images of noise in several sizes, some smaller than they are resized to."""
    (folder := tmp_path / "data").mkdir()
    table = noise_images(folder, 64, 4, 50, 50, ".png")
    for number in range(64):
        file = folder / f"{number}.png"
        Image.open(file).resize(np.random.default_rng(number).integers(20, 70, 2)).save(file)
    return table


def datamodule(table: Path, cache: bool = True, transforms: ImageTransforms = TRANSFORMS, fold: int = 0):
    data = MetricDataModule(ImageTable(table), transforms=transforms, cache=cache, fold=fold)
    data.setup("fit")
    _ = data.train_subset.images  # made at the first use
    return data


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("images/*.bin"))


@pytest.mark.parametrize("others", [{}, {"square": True, "random_crop": True}, {"interpolation": "bicubic"}])
def test_views_are_those_of_the_images_themselves(table: Path, others: dict) -> None:
    without, cached = (datamodule(table, cache, ImageTransforms(24, 32, **others)) for cache in (False, True))
    for subset in ("train_subset", "val_subset"):
        left, right = getattr(without, subset), pickle.loads(pickle.dumps(getattr(cached, subset)))  # as for a loader
        assert left.index.keys == right.index.keys
        assert all(np.array_equal(left[position][0], right[position][0]) for position in range(len(left)))


def test_each_half_is_cached_once_for_all_folds_and_no_other_image_is_opened(table: Path, cache: Path, monkeypatch):
    data, plain = datamodule(table), MetricDataModule(ImageTable(table), transforms=TRANSFORMS)
    assert {*data.train_subset.index.keys, *data.val_subset.index.keys} == {f"{number}.png" for number in range(32)}
    assert len(files(cache)) == 1
    plain.setup("test")
    expected = plain.test_subset[5][0]
    (table.parent / "40.png").rename(table.parent / "hidden")
    datamodule(table, fold=3)
    (table.parent / "hidden").rename(table.parent / "40.png")
    data.setup("test")
    _ = data.test_subset.images
    assert len(files(cache)) == 2, "the test half has its own file"
    monkeypatch.setattr(ImageTable, "load", lambda *_: pytest.fail("opened an image"))
    again = datamodule(table, fold=3)
    again.setup("test")
    assert again.test_subset.images is not None
    assert again.train_subset[0][0].shape == (24, 24, 3)
    assert np.array_equal(again.test_subset[5][0], expected)


def test_other_bytes_or_code_renew_the_cache_and_other_sizes_have_their_own(table: Path, cache: Path, monkeypatch):
    """Of the same size in bytes and with the same modification time."""
    before = datamodule(table)
    image = table.parent / "9.png"
    for colour, expected in {"red": [255, 0, 0], "blue": [0, 0, 255]}.items():
        Image.new("RGB", (40, 40), colour).save(image, format="BMP")
        os.utime(image, ns=(1, 1))
        after = datamodule(table).train_subset
        position = after.index.keys.index("9.png")
        assert after[position][0].max((0, 1)).tolist() == expected
    assert len(files(cache)) == 1
    before.train_subset[position]  # what is open stays readable
    for other in (ImageTransforms(24, 40), ImageTransforms(24, 32, square=True)):
        datamodule(table, transforms=other)
    assert len(made := files(cache)) == 3
    monkeypatch.setattr("levelfield.data.image_cache.sources", lambda settings: {"mine.py": "edited"})
    datamodule(table)
    assert len(set(files(cache)) - set(made)) == len(set(made) - set(files(cache))) == 1, "other code of the data set"


@pytest.mark.parametrize("size", [-1, 2000, 0])
def test_a_damaged_cache_is_written_again(size: int, table: Path, cache: Path) -> None:
    expected = datamodule(table).train_subset[3][0]
    (file,) = files(cache)
    content = file.read_bytes()
    file.unlink()  # what is mapped stays
    file.write_bytes(content[:size])
    assert np.array_equal(datamodule(table).train_subset[3][0], expected)
    assert file.read_bytes() == content


def test_without_room_each_epoch_decodes_and_nothing_is_left_behind(table: Path, cache: Path, capsys) -> None:
    with full_disk(20_000):
        decoded = next(iter(datamodule(table).val_dataloader()))[0]
    assert "(File too large): " in capsys.readouterr().err
    assert [path for path in (cache / "images").iterdir() if path.is_file()] == []
    assert torch.equal(decoded, next(iter(datamodule(table).val_dataloader()))[0])


def test_what_cannot_be_cached_is_decoded(cache: Path, table: Path, capsys) -> None:
    class Plain:  # own transforms, which get whole images
        train = evaluate = lambda self: lambda image: torch.zeros(1)

    for data in (MetricDataModule(Glyphs(num_classes=40)), MetricDataModule(ImageTable(table), transforms=Plain())):
        data.setup("fit")
        assert data.train_subset.images is None
    assert capsys.readouterr().err == ""
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert np.array_equal(datamodule(table).train_subset[3][0], datamodule(table, False).train_subset[3][0])
    assert "(Not a directory): " in capsys.readouterr().err


def test_a_cache_takes_at_most_half_of_the_free_disk(table: Path, cache: Path, monkeypatch, capsys) -> None:
    """32 images of 32 x 32 and more take over 98,304 bytes; the last look finds them there, whatever is free."""
    plain = datamodule(table, False).train_subset[1][0]
    for free, told, there in ((196_000, "over half of the free disk", 0), (10**6, "0 MB", 1), (0, "", 1)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert np.array_equal(datamodule(table).train_subset[1][0], plain)
        said = capsys.readouterr().err
        assert (told in said, bool(said), len(files(cache))) == (True, bool(told), there)


def test_own_transforms_get_images_of_pillow(table: Path) -> None:
    class Own(ImageTransforms):
        def train(self):
            return lambda image: torch.tensor(image.getpixel((0, 0)))

    own = datamodule(table, transforms=Own(24, 32))
    assert own.train_subset[0][0].tolist() == list(reduced(table, own.train_subset.index.keys[0]).getpixel((0, 0)))
    assert next(iter(own.train_dataloader()))[0].shape == (32, 3)


def reduced(table: Path, key: str) -> Image.Image:
    return TRANSFORMS.reduce()(ImageTable(table).load(key))


def test_a_broken_image_is_no_error_of_writing(table: Path, cache: Path) -> None:
    class Own(ImageTable):
        def load(self, key: str) -> Image.Image:
            raise OSError(f"no access to {key}")

    (own := MetricDataModule(Own(table), transforms=TRANSFORMS)).setup("fit")
    with pytest.raises(UserError, match=r"^cannot open a sample: no access to"):
        _ = own.train_subset.images
    assert not files(cache)


def test_two_that_come_at_once_decode_each_image_once(table: Path) -> None:
    opened = []

    class Slow(ImageTable):
        def load(self, key: str) -> Image.Image:
            opened.append(key)
            time.sleep(0.002)
            return super().load(key)

    def cached(_: int):
        dataset = Slow(table)
        return cached_images(dataset, dataset.read_index(), "all", lambda: "content", TRANSFORMS)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(cached, range(2)))
    keys = ImageTable(table).read_index().keys
    assert (set(opened), len(opened)) == (set(keys), len(keys) + LOOKED_AT)
    for each in found:
        assert all(np.array_equal(each[position], reduced(table, key)) for position, key in enumerate(keys))
