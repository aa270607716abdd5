"""Prepared images and features: the same as without, made once by all that want them, whole whatever happens."""

import importlib
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data import Glyphs, ImageFolder, ImageTable, ImageTransforms, feature_file
from levelfield.data.cache import INDEX, prepared_images
from levelfield.data.crops import load
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.feature_file import prepare_features
from levelfield.data.features import in_words
from levelfield.data.images import open_image

TRANSFORMS = ImageTransforms(crop_size=24, resize=32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LEVELFIELD_CACHE", str(folder))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """16 classes of 4 pictures of noise in several sizes, some smaller than they are brought to."""
    (tmp_path / "data").mkdir()
    rows = ["path,label"]
    for number in range(64):
        rng = np.random.default_rng(number)
        size = (*rng.integers(20, 70, 2), 3)
        Image.fromarray(rng.integers(0, 255, size, dtype=np.uint8)).save(tmp_path / "data" / f"{number}.png")
        rows.append(f"{number}.png,{number // 4}")
    table = tmp_path / "data" / "table.csv"
    table.write_text("\n".join(rows))
    return table


def datamodule(table: Path, cache: bool | str = True, transforms: ImageTransforms = TRANSFORMS, fold: int = 0):
    data = MetricDataModule(ImageTable(table), transforms=transforms, cache=cache, fold=fold)
    data.setup("fit")
    return data


def pixel_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/pixels-*.bin"))


@pytest.mark.parametrize("others", [{}, {"square": True, "random_crop": True}, {"interpolation": "bicubic"}])
def test_views_are_those_of_the_images_themselves(table: Path, others: dict) -> None:
    without, prepared = (datamodule(table, cache, ImageTransforms(24, 32, **others)) for cache in (False, True))
    for subset in ("train_subset", "val_subset"):
        left, right = getattr(without, subset), getattr(prepared, subset)
        assert left.index.keys == right.index.keys
        assert all(torch.equal(left[position][0], right[position][0]) for position in range(len(left)))


def test_each_half_is_prepared_once_for_all_folds_and_no_other_image_is_opened(table: Path, cache: Path, monkeypatch):
    data, plain = datamodule(table), MetricDataModule(ImageTable(table), transforms=TRANSFORMS)
    assert {*data.train_subset.index.keys, *data.val_subset.index.keys} == {f"{number}.png" for number in range(32)}
    assert len(pixel_files(cache)) == 1
    plain.setup("test")
    expected = plain.test_subset[5][0]
    hidden = (table.parent / "40.png").rename(table.parent / "hidden")
    datamodule(table, fold=3)
    with pytest.raises(UserError, match=r"row 42: no file .*40\.png"):
        data.setup("test")
    hidden.rename(table.parent / "40.png")
    data.setup("test")
    assert len(pixel_files(cache)) == 2, "the test half has a file of its own"
    monkeypatch.setattr(ImageTable, "load", lambda *_: pytest.fail("opened an image"))
    again = datamodule(table, fold=3)
    again.setup("test")
    assert again.train_subset[0][0].shape == (3, 24, 24)
    assert torch.equal(again.test_subset[5][0], expected)


def test_a_changed_image_renews_the_cache_and_other_sizes_have_their_own(table: Path, cache: Path) -> None:
    """Of the same size in bytes and with the same modification time."""
    before = datamodule(table)
    image = table.parent / "9.png"
    for colour, expected in {"red": [1, 0, 0], "blue": [0, 0, 1]}.items():
        Image.new("RGB", (40, 40), colour).save(image, format="BMP")
        os.utime(image, ns=(1, 1))
        after = datamodule(table).train_subset
        position = after.index.keys.index("9.png")
        assert after[position][0].amax((1, 2)).tolist() == expected
    assert len(pixel_files(cache)) == 1
    before.train_subset[position]  # what is open stays readable
    for other in (ImageTransforms(24, 40), ImageTransforms(24, 32, square=True)):
        datamodule(table, transforms=other)
    assert len(pixel_files(cache)) == 3


@pytest.mark.parametrize("damage", ["no pixels", "short pixels", "broken index", "empty index"])
def test_a_damaged_cache_is_made_anew(damage: str, table: Path, cache: Path) -> None:
    expected = datamodule(table).train_subset[3][0]
    (pixels,) = pixel_files(cache)
    file = pixels if "pixels" in damage else pixels.parent / INDEX
    content = file.read_bytes()
    file.unlink()
    if damage != "no pixels":
        file.write_bytes(content[: {"short": -1, "broken": len(content) // 2, "empty": 0}[damage.split()[0]]])
    assert torch.equal(datamodule(table).train_subset[3][0], expected)


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """A limit on the size of files stands for a full disk: the same system call fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_is_one_line_and_leaves_nothing_behind(table: Path, cache: Path) -> None:
    with no_room(20_000):
        with pytest.raises(UserError, match=r"cannot write the prepared cache .*\(File too large\): ") as caught:
            datamodule(table)
        auto = next(iter(datamodule(table, "auto").val_dataloader()))[0]
    assert "\n" not in str(caught.value)
    left = [path.name for path in cache.rglob("*") if path.is_file() and path.parent.name != "hashes"]
    assert left == ["cache.lock"]
    assert torch.equal(auto, next(iter(datamodule(table).val_dataloader()))[0])


class Plain:
    """Own transforms, which get whole images."""

    def train(self):
        return lambda image: torch.zeros(1)

    evaluate = train


def test_what_cannot_be_cached_is_refused(cache: Path, table: Path) -> None:
    with pytest.raises(UserError, match="image files, but glyphs has none: leave it out"):
        MetricDataModule(Glyphs(num_classes=40), cache=True).setup("fit")
    for other, value in {"features": True, "transforms": Plain()}.items():
        with pytest.raises(UserError, match=rf"data\.cache.*data\.{other}"):
            MetricDataModule(ImageTable(table), cache=True, **{other: value}).setup("fit")
    cache.write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"prepared cache .* \(Not a directory\): .*LEVELFIELD_CACHE"):
        datamodule(table)


def test_auto_prepares_what_takes_little_room(table: Path, cache: Path, monkeypatch, capsys) -> None:
    """32 images of 32 x 32 and more take over 98,304 bytes; the second look finds them there, whatever the bound."""
    monkeypatch.setattr("levelfield.data.cache.free_memory", lambda: 196_000)
    plain = datamodule(table, "auto").train_subset[1][0]
    assert not pixel_files(cache)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "half of the free memory (0.0 GB), so each epoch decodes them; --data.cache true stores them" in said
    monkeypatch.setattr("levelfield.data.cache.free_memory", lambda: 10**6)
    assert torch.equal(datamodule(table, "auto").train_subset[1][0], plain)
    (pixels,) = pixel_files(cache)
    assert "takes 0 MB" in capsys.readouterr().err
    monkeypatch.setattr("levelfield.data.cache.free_memory", lambda: 0)
    monkeypatch.setattr(ImageTable, "load", lambda *_: pytest.fail("opened an image"))
    assert torch.equal(datamodule(table, "auto").train_subset[1][0], plain)
    assert pixel_files(cache) == [pixels]
    assert not capsys.readouterr().err


def test_drafts_of_large_photographs_are_nearly_the_same_and_whole_by_default(tmp_path: Path, data_root: Path) -> None:
    photograph = Image.open(next(data_root.glob("grocery_store/**/*.jpg"))).convert("RGB").resize((1200, 900))
    for number in range(40):
        (folder := tmp_path / "photos" / f"{number // 5}").mkdir(parents=True, exist_ok=True)
        photograph.save(folder / f"{number}.jpg", quality=95)
    dataset, whole = ImageFolder(tmp_path / "photos"), ImageTransforms(64, 64)
    assert not whole.draft
    drafted = replace(whole, draft=True)
    key = dataset.read_index().keys[0]
    assert load(dataset, key, whole.evaluate()).size == (1200, 900)
    assert load(dataset, key, drafted.evaluate()).size == (300, 225)  # an eighth would be below 2 x 64
    views = []
    for transforms, cache in ((whole, False), (drafted, False), (drafted, True)):
        data = MetricDataModule(dataset, split="random", num_folds=2, transforms=transforms, cache=cache)
        data.setup("fit")
        views.append(data.val_subset[0][0])
    assert torch.equal(views[1], views[2]), "the cache is filled with drafts too"
    assert 0 < (views[0] - views[1]).abs().mean() < 0.01


def test_each_setting_that_changes_an_evaluated_image_has_features_of_its_own(data_root: Path, tmp_path) -> None:
    file, usual = tmp_path / "it.jpg", ImageTransforms(64, 80)
    open_image(next(data_root.glob("grocery_store/**/*.jpg"))).resize((640, 480)).save(file)
    others = {
        "crop_size": 60,
        "resize": 90,
        "eval_resize": 90,
        "square": True,
        "interpolation": "bicubic",
        "draft": True,
    }
    same = {"scale": (0.5, 1.0), "ratio": (1.0, 1.0), "horizontal_flip": False, "random_crop": True}
    assert {each.name for each in fields(ImageTransforms)} == {*others, *same}
    source = SimpleNamespace(load=open_image)
    for name, value in {**others, **same}.items():
        transforms = replace(usual, **{name: value})
        images = [each.evaluate()(load(source, file, each.evaluate())) for each in (usual, transforms)]
        changes = images[0].shape != images[1].shape or not torch.equal(*images)
        assert changes == (in_words(transforms) != in_words(usual)) == (name in others), name


def test_auto_does_without_where_a_cache_cannot_be(table: Path, cache: Path) -> None:
    MetricDataModule(Glyphs(num_classes=40), cache="auto").setup("fit")
    assert not cache.exists()
    cache.write_text("a file where the folder should be")
    assert torch.equal(datamodule(table, "auto").train_subset[3][0], datamodule(table, False).train_subset[3][0])


def test_transforms_of_ones_own_get_pillows_images(table: Path) -> None:
    class OnesOwn(ImageTransforms):
        def train(self):
            return lambda image: torch.tensor(image.getpixel((0, 0)))

    own = MetricDataModule(ImageTable(table), transforms=OnesOwn(24, 32), cache=True, batch_size=8)
    own.setup("fit")
    assert own.train_subset[0][0].tolist() == list(reduced(table, own.train_subset.index.keys[0]).getpixel((0, 0)))
    assert next(iter(own.train_dataloader()))[0].shape == (8, 3)


@pytest.mark.processes
def test_many_images_are_decoded_by_several_processes(table: Path, cache: Path, monkeypatch) -> None:
    alone = datamodule(table)
    expected = pixel_files(cache)[0].read_bytes()
    (pixel_files(cache)[0].parent / INDEX).unlink()
    monkeypatch.setattr("levelfield.data.cache.FEW", 10)
    torch.manual_seed(3)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(datamodule(table).train_subset[1][0], alone.train_subset[1][0])
    assert torch.equal(torch.rand(2), drawn)
    assert pixel_files(cache)[0].read_bytes() == expected
    pixel_files(cache)[0].unlink()
    (table.parent / "7.png").write_bytes(b"no image")
    for few in (10, 500):
        monkeypatch.setattr("levelfield.data.cache.FEW", few)
        with pytest.raises(UserError, match=r"7\.png is not an image") as caught:
            datamodule(table)
        assert "\n" not in str(caught.value)
    assert not pixel_files(cache)


def test_two_that_come_at_once_decode_each_image_once(table: Path) -> None:
    keys, opened = ImageTable(table).read_index().keys, []

    def prepare(_: int):
        dataset = ImageTable(table)

        def read(key: str) -> Image.Image:
            opened.append(key)
            time.sleep(0.002)
            return reading(dataset)(key)

        return prepared_images(dataset, dataset.read_index(), read, {"half": "all"})

    with ThreadPoolExecutor(2) as threads:
        prepared = list(threads.map(prepare, range(2)))
    assert opened == list(keys)
    assert all(np.array_equal(each.load(key), reduced(table, key)) for each in prepared for key in keys)


def reading(dataset: ImageTable):
    reduce = TRANSFORMS.reduce()
    return lambda key: reduce(dataset.load(key))


def reduced(table: Path, key: str) -> Image.Image:
    return TRANSFORMS.reduce()(ImageTable(table).load(key))


OWN = """
from PIL import Image
from levelfield.data import ImageTable

class Mine(ImageTable):
    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.made = object()  # no argument: no cache of its own at each start

    def load(self, key: str) -> Image.Image:
        return Image.new("RGB", (20, 20), "COLOUR")
"""


def test_another_load_of_an_own_data_set_makes_the_cache_anew(table, cache, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for colour, value in (("white", 1), ("grey", 128 / 255)):
        (tmp_path / "mine.py").write_text(OWN.replace("COLOUR", colour))
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()
        data = MetricDataModule(importlib.import_module("mine").Mine(str(table)), transforms=TRANSFORMS, cache=True)
        data.setup("fit")
        assert data.val_subset[0][0].mean().item() == pytest.approx(value)
    assert len(pixel_files(cache)) == 1


DATASET = Glyphs(num_classes=4)
LETTERS = DATASET.read_index()
SAMPLES = len(LETTERS.keys)
BATCH = 7


class Counted:
    """Batches of 7 with numbers of their own, and the first samples of the parts that were asked for."""

    def __init__(self, breaks_at: int | None = None, meet: threading.Barrier | None = None) -> None:
        self.asked: list[int] = []
        self.breaks_at, self.meet = breaks_at, meet

    def __call__(self, start: int, stop: int) -> Iterator[np.ndarray]:
        self.asked.append(start)
        if self.meet is not None and len(self.asked) == 1:
            self.meet.wait(10)
        whole = np.arange(SAMPLES * 5, dtype=np.float32).reshape(SAMPLES, 5)
        for first in range(start, stop, BATCH):
            if self.breaks_at is not None and first >= self.breaks_at:
                raise RuntimeError("killed")
            torch.rand(3)
            yield whole[first : min(first + BATCH, stop)]


def prepare(batches: Counted, **purpose: int) -> torch.Tensor:
    return prepare_features(DATASET, LETTERS, purpose, BATCH, batches)


EXPECTED = torch.arange(SAMPLES * 5.0).reshape(SAMPLES, 5)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parts of two batches."""
    monkeypatch.setattr(feature_file, "PART_SAMPLES", 10)
    return list(range(0, SAMPLES, 14))


def test_parts_give_the_file_that_one_part_gives(cache: Path, small_parts: list[int], monkeypatch: pytest.MonkeyPatch):
    made = Counted()
    found = prepare(made)
    assert torch.equal(prepare(Counted(breaks_at=0)), found), "they are made once"
    assert made.asked == small_parts
    assert len(small_parts) > 4
    (file,) = (path for path in cache.rglob("*.npy"))
    assert torch.equal(found, EXPECTED)
    content = file.read_bytes()
    file.unlink()
    monkeypatch.setattr(feature_file, "PART_SAMPLES", 2048)
    prepare(Counted())
    assert file.read_bytes() == content


def test_whether_there_is_a_file_changes_no_later_draw():
    torch.manual_seed(3)
    later = torch.rand(4)
    for _ in range(2):
        torch.manual_seed(3)
        prepare(Counted())
        assert torch.equal(torch.rand(4), later)


def test_whole_parts_of_a_killed_process_are_taken_up(cache, small_parts: list[int], capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError, match="killed"):
        prepare(Counted(breaks_at=28))
    capfd.readouterr()
    again = Counted()
    found = prepare(again)
    assert again.asked == small_parts[2:], "two parts were whole"
    assert f"computing the features of {SAMPLES - 28:,} samples once" in capfd.readouterr().err
    assert torch.equal(found, EXPECTED)
    assert [path.suffix for path in cache.rglob("*") if path.suffix in (".npy", ".tmp")] == [".npy"], "no part is left"


@pytest.mark.parametrize("damage", ["short", "foreign", "zeros", "one byte"])
def test_a_damaged_file_is_made_again(damage: str, cache: Path):
    prepare(Counted())
    (file,) = cache.rglob("*.npy")
    content = file.read_bytes()
    file.unlink()  # what is mapped stays
    damaged = {
        "short": content[:-4],
        "foreign": b"no array" * 100,
        "zeros": content[:128] + bytes(len(content) - 128),  # with the header of the array
        "one byte": content[:200] + bytes([content[200] ^ 1]) + content[201:],
    }
    file.write_bytes(damaged[damage])
    again = Counted()
    assert torch.equal(prepare(again), EXPECTED)
    assert again.asked == [0]


def test_two_that_come_at_once_share_the_parts(small_parts: list[int]):
    both_have_one = threading.Barrier(2)
    makers = [Counted(meet=both_have_one), Counted(meet=both_have_one)]
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(prepare, makers))
    assert sorted(makers[0].asked + makers[1].asked) == small_parts, "each part once"
    assert torch.equal(*found)
