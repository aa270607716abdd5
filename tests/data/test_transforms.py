"""Transforms of images: torchvision's of real pictures, bit by bit, and what is refused."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from levelfield.core.errors import UserError
from levelfield.data import GroceryStore, ImageTransforms
from levelfield.data.images import open_image

SETTINGS = [
    ImageTransforms(112, 128),
    ImageTransforms(64, 73, interpolation="bicubic", horizontal_flip=False),
    ImageTransforms(100, 120, square=True, random_crop=True),
    ImageTransforms(90, None, eval_resize=100),
]


@cache
def photographs(root: Path) -> list[Image.Image]:
    dataset = GroceryStore(root)
    return [dataset.load(key) for key in dataset.read_index().keys[::400]]


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
    return v2.Compose([*steps, np.asarray])


def drawn(transform, image, seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    return transform(image)


@pytest.mark.parametrize("transforms", SETTINGS, ids=["crop", "bicubic", "square", "as it is"])
@pytest.mark.parametrize("train", [True, False])
def test_a_crop_is_torchvisions_of_pillow_bit_by_bit(transforms: ImageTransforms, train: bool, data_root: Path) -> None:
    """From the picture, and from the reduced one, as the prepared cache has them."""
    ours, expected = transforms.train() if train else transforms.evaluate(), pipeline(transforms, train)
    for seed, image in enumerate(photographs(data_root)):
        wanted = drawn(expected, image, seed)
        assert np.array_equal(drawn(ours, image, seed), wanted)
        assert np.array_equal(drawn(ours, transforms.reduce()(image), seed), wanted)


def test_the_defaults_are_the_protocols_and_evaluation_takes_the_centre() -> None:
    transforms = ImageTransforms()
    assert (transforms.crop_size, transforms.resize, transforms.scale) == (227, 256, (0.16, 1.0))
    assert transforms.ratio == pytest.approx((3 / 4, 4 / 3))
    rising = np.zeros((256, 512, 3), dtype=np.uint8)  # red from left to right, green from top to bottom
    rising[..., 0], rising[..., 1] = np.linspace(0, 255, 512), np.linspace(0, 255, 256)[:, None]
    # 512 x 256 keeps its size: columns 142.5 to 369.5 of 512 are left, rows 14.5 to 241.5 of 256.
    image = transforms.evaluate()(Image.fromarray(rising))
    assert (image.shape, image.dtype) == ((227, 227, 3), np.uint8)
    shown = [image[0, 0, 0], image[0, -1, 0], image[0, 0, 1]]
    assert shown == pytest.approx([142 / 511 * 255, 369 / 511 * 255, 14], abs=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crop_size": 300}, "crop_size 300"),
        ({"scale": (1.0, 0.5)}, "scale"),
        ({"ratio": (0.0, 1.0)}, "ratio"),
        ({"resize": None}, "eval_resize"),
        ({"resize": None, "eval_resize": 256, "random_crop": True}, "square and random_crop need .*: give resize"),
        ({"resize": None, "eval_resize": 256, "square": True}, "square and random_crop need .*: give resize"),
        ({"eval_resize": 200}, "crop_size 227 must be 1 to eval_resize"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImageTransforms(**arguments)


def test_a_thin_image_is_refused_with_its_name(tmp_path: Path) -> None:
    Image.new("RGB", (1, 3000)).save(tmp_path / "thin.png")
    image = open_image(tmp_path / "thin.png")
    for resized in (ImageTransforms().reduce(), ImageTransforms().train(), ImageTransforms().evaluate()):
        with pytest.raises(UserError, match=r"thin\.png has 1 x 3000 pixels, .* resized to 256 x 768000"):
            resized(image)
    assert ImageTransforms(square=True).reduce()(image).size == (256, 256)
