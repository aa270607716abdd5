"""Squares cut out of real pictures: torchvision's bit by bit, or within a grey level of them where they are fast."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from levelfield.data import GroceryStore, ImageTransforms
from levelfield.data.crops import as_floats, stacked
from levelfield.data.datasets.images import AtLeast, open_image

SETTINGS = [
    ImageTransforms(112, 128),
    ImageTransforms(64, 73, interpolation="bicubic", horizontal_flip=False),
    ImageTransforms(100, 120, square=True, random_crop=True),
    ImageTransforms(90, None, eval_resize=100),
]


@cache
def photographs(root: Path) -> list[Image.Image]:
    dataset = GroceryStore(root)
    return [dataset.load(key) for key in dataset.read_index().keys[::150]]


def pipeline(transforms: ImageTransforms, train: bool) -> v2.Compose:
    """What the settings say, by torchvision on images of Pillow."""
    mode, side = v2.InterpolationMode(transforms.interpolation), transforms.crop_size
    resize = transforms.resize if train else transforms.eval_resize or transforms.resize
    steps = [] if resize is None else [v2.Resize([resize, resize] if transforms.square else resize, mode)]
    if not train:
        steps.append(v2.CenterCrop(side))
    elif transforms.random_crop:
        steps.append(v2.RandomCrop(side))
    else:
        steps.append(v2.RandomResizedCrop(side, transforms.scale, transforms.ratio, mode))
    if train and transforms.horizontal_flip:
        steps.append(v2.RandomHorizontalFlip())
    return v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def drawn(transform, image, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return transform(image)


@pytest.mark.parametrize("transforms", SETTINGS, ids=["crop", "bicubic", "square", "as it is"])
@pytest.mark.parametrize("train", [True, False])
def test_a_crop_is_torchvisions_of_pillow_bit_by_bit(transforms: ImageTransforms, train: bool, data_root: Path) -> None:
    """From the picture, and from its reduced bytes, as the prepared cache has them."""
    ours, expected = transforms.train() if train else transforms.evaluate(), pipeline(transforms, train)
    for seed, image in enumerate(photographs(data_root)):
        wanted = drawn(expected, image, seed)
        assert torch.equal(drawn(ours, image, seed), wanted)
        assert torch.equal(drawn(ours, np.asarray(transforms.reduce()(image)), seed), wanted)


@pytest.mark.parametrize("transforms", SETTINGS, ids=["crop", "bicubic", "square", "as it is"])
def test_a_fast_crop_is_the_same_box_within_a_grey_level(transforms: ImageTransforms, data_root: Path) -> None:
    """On average over each picture, mirrored or not; another box would be tens of levels away."""
    fast = ImageTransforms(**{**vars(transforms), "fast": True})
    for seed, image in enumerate(photographs(data_root)):
        difference = drawn(fast.train(), image, seed) - drawn(transforms.train(), image, seed)
        assert difference.abs().mean() < 1 / 255
        assert torch.equal(fast.evaluate()(image), transforms.evaluate()(image))


def test_a_jpeg_is_read_at_a_smaller_scale_within_a_grey_level(data_root: Path) -> None:
    """160 px, wanted at 35: a half has 2.25 times as many. Another pixel's crop would be several levels away."""
    dataset = GroceryStore(data_root)
    plain, fast = ImageTransforms(31, 35), ImageTransforms(31, 35, fast=True)
    assert fast.least_side == 79
    assert plain.least_side is None
    source = AtLeast(dataset, 79)
    differences = []
    for key in dataset.read_index().keys[::150]:
        whole, small = dataset.load(key), source.load(key)
        assert small.size == tuple((side + 1) // 2 for side in whole.size)
        assert fast.reduce()(small).size == plain.reduce()(whole).size
        differences.append((fast.evaluate()(small) - plain.evaluate()(whole)).abs().mean() * 255)
    assert torch.stack(differences).mean() < 1
    assert torch.stack(differences).max() < 2


def test_a_file_that_cannot_be_smaller_is_read_to_the_same_bits(data_root: Path, tmp_path: Path) -> None:
    dataset = GroceryStore(data_root)
    key = dataset.read_index().keys[0]
    assert np.array_equal(AtLeast(dataset, 81).load(key), dataset.load(key))
    assert np.array_equal(AtLeast(dataset, 80).dataset.load(key), dataset.load(key))
    png = tmp_path / "large.png"
    photographs(data_root)[0].resize((900, 700)).save(png)

    class Files:
        def load(self, key: str) -> Image.Image:
            return open_image(Path(key))

    assert np.array_equal(AtLeast(Files(), 40).load(str(png)), open_image(png))


def test_a_reduced_jpeg_is_turned_as_it_says(tmp_path: Path) -> None:
    image = Image.fromarray(np.tile(np.linspace(0, 255, 640, dtype=np.uint8)[:, None, None], (1, 320, 3)))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    image.save(tmp_path / "turned.jpg", exif=exif)

    class Files:
        def load(self, key: str) -> Image.Image:
            return open_image(tmp_path / key)

    small = AtLeast(Files(), 80).load("turned.jpg")
    assert small.size == (160, 80)
    assert ImageTransforms(24, 32).reduce()(small).size == (64, 32)


def test_a_batch_is_in_channels_last_and_becomes_shares_of_white() -> None:
    squares = [np.full((2, 2, 3), value, dtype=np.uint8) for value in (0, 51, 255)]
    batch = stacked(squares)
    assert batch.shape == (3, 3, 2, 2)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(as_floats(batch)[:, 0, 0, 0], torch.tensor([0.0, 0.2, 1.0]))
