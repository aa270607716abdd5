"""The Reality Check's transforms: sizes, values, crops within their bounds."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from levelfield.data.transforms import ImageTransforms
from levelfield.errors import UserError


def gradient(width: int, height: int) -> Image.Image:
    """Red rises from left to right, green from top to bottom."""
    red = np.tile(np.linspace(0, 255, width), (height, 1))
    green = np.tile(np.linspace(0, 255, height)[:, None], (1, width))
    return Image.fromarray(np.stack([red, green, np.zeros_like(red)], axis=-1).astype(np.uint8))


def test_the_defaults_are_the_protocols() -> None:
    transforms = ImageTransforms()
    assert (transforms.crop_size, transforms.resize, transforms.scale) == (227, 256, (0.16, 1.0))
    assert transforms.ratio == pytest.approx((3 / 4, 4 / 3))


def test_evaluation_takes_the_centre() -> None:
    # 512 x 256 keeps its size: columns 142.5 to 369.5 of 512 are left, rows 14.5 to 241.5 of 256.
    image = ImageTransforms().evaluate()(gradient(512, 256))
    assert image.shape == (3, 227, 227)
    assert image.dtype == torch.float32
    assert image[0, 0, 0] == pytest.approx(142 / 511, abs=0.01)
    assert image[0, 0, -1] == pytest.approx(369 / 511, abs=0.01)
    assert image[1, 0, 0] == pytest.approx(14 / 255, abs=0.01)


def test_values_are_shares_of_white() -> None:
    """The trunk standardises with its own mean and std."""
    grey = Image.new("RGB", (300, 300), (0, 51, 255))
    for transform in (ImageTransforms().train(), ImageTransforms().evaluate()):
        assert torch.allclose(transform(grey)[:, 100, 100], torch.tensor([0.0, 0.2, 1.0]))


def test_crops_stay_within_scale_and_ratio_and_flip_half() -> None:
    torch.manual_seed(0)
    image = gradient(256, 256)
    train = ImageTransforms().train()
    areas, ratios, flipped = [], [], []
    for _ in range(300):
        crop = train(image)
        across = float(crop[0].mean(0)[-1] - crop[0].mean(0)[0])
        down = float(crop[1].mean(1)[-1] - crop[1].mean(1)[0])
        areas.append(abs(across) * down)
        ratios.append(abs(across) / down)
        flipped.append(across < 0)
    assert min(areas) == pytest.approx(0.16, abs=0.03)
    assert 0.9 < max(areas) <= 1
    assert 0.72 < min(ratios) < 0.85
    assert 1.2 < max(ratios) < 1.38
    assert np.mean(flipped) == pytest.approx(0.5, abs=0.15)  # five standard deviations of 300 coins
    unflipped = ImageTransforms(horizontal_flip=False).train()
    assert all(float(crop[0, 0, -1] - crop[0, 0, 0]) > 0 for crop in (unflipped(image) for _ in range(30)))


def test_a_square_loses_the_aspect_and_a_random_crop_keeps_the_scale() -> None:
    """Zhai and Wu: 256 x 256, then 224 x 224 of it. Red rises 0 to 1 over 256 columns: 223 / 255 over 224."""
    transforms = ImageTransforms(crop_size=224, square=True, random_crop=True, horizontal_flip=False)
    centre = transforms.evaluate()(gradient(512, 256))
    assert centre[0, 0, 0] == pytest.approx(16 / 255, abs=0.01)
    assert centre[0, 0, -1] == pytest.approx(239 / 255, abs=0.01)
    torch.manual_seed(0)
    train = transforms.train()
    crops = torch.stack([train(gradient(512, 256)) for _ in range(50)])
    across, down = crops[:, 0].mean(1), crops[:, 1].mean(2)
    assert torch.allclose(across[:, -1] - across[:, 0], torch.tensor(223 / 255), atol=0.01)
    assert torch.allclose(down[:, -1] - down[:, 0], torch.tensor(223 / 255), atol=0.01)
    lefts = across[:, 0] * 255
    assert lefts.min() < 4
    assert lefts.max() > 28


def test_bicubic_is_pillows() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 60, 3), dtype=np.uint8))
    expected = image.resize((32, 48), Image.Resampling.BICUBIC)
    assert np.array_equal(ImageTransforms(32, 32, interpolation="bicubic").reduce()(image), expected)
    assert not np.array_equal(ImageTransforms(32, 32).reduce()(image), expected)


@pytest.mark.parametrize("size", [(90, 61), (61, 90), (64, 64), (20, 31), (333, 100)])
@pytest.mark.parametrize("square", [False, True])
def test_reducing_a_reduced_image_changes_nothing(size: tuple[int, int], square: bool) -> None:
    """So a cache of reduced images gives the pixels that the images themselves give."""
    reduce = ImageTransforms(crop_size=57, resize=64, square=square).reduce()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8))
    once = reduce(image)
    assert min(once.size) == 64
    assert np.array_equal(reduce(once), once)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crop_size": 300}, "crop_size 300"),
        ({"scale": (1.0, 0.5)}, "scale"),
        ({"ratio": (0.0, 1.0)}, "ratio"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageTransforms(**arguments)


def test_a_training_crop_may_be_cut_out_of_the_image_as_it_is() -> None:
    """Pixel for pixel what torchvision cuts out of the original; evaluation brings it to 256 first (V&D, 4.2.3)."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 700, 3), dtype=np.uint8))
    cropped = {"crop_size": 224, "scale": (0.3, 1.0), "horizontal_flip": False}
    original = ImageTransforms(resize=None, eval_resize=256, **cropped)
    torch.manual_seed(0)
    here = original.train()(noise)
    torch.manual_seed(0)
    there = v2.RandomResizedCrop(224, scale=(0.3, 1.0), ratio=(3 / 4, 4 / 3))(noise)
    assert torch.equal(here, v2.functional.to_dtype(v2.functional.to_image(there), torch.float32, scale=True))
    torch.manual_seed(0)
    assert not torch.equal(ImageTransforms(resize=256, **cropped).train()(noise), here)
    assert torch.equal(original.evaluate()(noise), ImageTransforms(resize=256, crop_size=224).evaluate()(noise))
    assert original.reduce()(noise).size == noise.size  # nothing that both begin with


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"resize": None}, "eval_resize"),
        ({"resize": None, "eval_resize": 256, "random_crop": True}, "square and random_crop need .*: give resize"),
        ({"resize": None, "eval_resize": 256, "square": True}, "square and random_crop need .*: give resize"),
        ({"eval_resize": 200}, "crop_size 227 must be from 1 to eval_resize"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(arguments, line) -> None:
    with pytest.raises(UserError, match=line):
        ImageTransforms(**arguments)
