"""Image transforms for training and evaluation, from an image to a square of bytes; defaults of the Reality Check."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from levelfield.core.errors import UserError

Interpolation = Literal["bilinear", "bicubic"]


@runtime_checkable
class Transforms(Protocol):
    """Interface of `--data.transforms my_aug.Mine`: any class with these two methods.

    The methods have no annotations, because jsonargparse would require them in the user's class.
    """

    def train(self):  # type: ignore[no-untyped-def]
        """The transform of a training image (RGB) to a tensor, or to bytes like `Crops`.

        It may draw from torch's, NumPy's and Python's global generators.
        """

    def evaluate(self):  # type: ignore[no-untyped-def]
        """The transform of an image for embedding, without randomness."""


@dataclass(frozen=True)
class ImageTransforms:
    """Resized crop and flip for training, centre crop for evaluation ("A Metric Learning Reality Check", section 4.1).

    Args:
        crop_size: side of the square input of the trunk, in pixels.
        resize: shorter side of an image before the crop, in pixels. None crops the original training image; then give
            `eval_resize`.
        eval_resize: `resize` for evaluation; None takes `resize`.
        scale: smallest and largest area of a training crop, as a fraction of the image.
        ratio: smallest and largest width / height of a training crop.
        horizontal_flip: mirror half of the training images; not for letters.
        square: resize both sides to `resize` and change the aspect ratio (Zhai and Wu).
        random_crop: cut training crops of `crop_size` without resizing them; `scale` and `ratio` have no effect then.
        interpolation: interpolation for resizing.

    Raises:
        UserError: a crop larger than the resized image, or a range in the wrong order.
    """

    crop_size: int = 227
    resize: int | None = 256
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    horizontal_flip: bool = True
    square: bool = False
    random_crop: bool = False
    interpolation: Interpolation = "bilinear"
    eval_resize: int | None = None

    def __post_init__(self) -> None:
        if self.eval_side is None:
            raise UserError("resize null crops original training images: give eval_resize for evaluation")
        if self.resize is None and (self.square or self.random_crop):
            raise UserError("square and random_crop need images of one size: give resize")
        for key, resize in (("resize", self.resize), ("eval_resize", self.eval_resize)):
            if resize is not None and not 0 < self.crop_size <= resize:
                raise UserError(f"crop_size {self.crop_size} must be 1 to {key} ({resize}): lower it or raise {key}")
        for key in ("scale", "ratio"):
            low, high = getattr(self, key)
            if not 0 < low <= high:
                raise UserError(f"{key} ({low}, {high}) must be two positive numbers, the smaller one first")

    @property
    def eval_side(self) -> int | None:
        """The shorter side of an image in evaluation."""
        return self.resize if self.eval_resize is None else self.eval_resize

    @property
    def reduced(self) -> int | None:
        """The size after `reduce`; None if training and evaluation begin differently."""
        return self.resize if self.resize == self.eval_side else None

    def reduce(self) -> Callable[[Image.Image], Image.Image]:
        """The first, fixed step of `train` and `evaluate`; it leaves a reduced image unchanged."""
        return partial(resized, side=self.reduced, square=self.square, interpolation=self.interpolation)

    def train(self) -> "Crops":
        """The random crops of training, drawn from torch's global generator."""
        crop = partial(v2.RandomResizedCrop, scale=self.scale, ratio=self.ratio)
        box = v2.RandomCrop(self.crop_size) if self.random_crop else crop(self.crop_size)
        return Crops(self, self.resize, box, self.horizontal_flip)

    def evaluate(self) -> "Crops":
        """The centre crop of evaluation."""
        return Crops(self, self.eval_side, None, False)


@dataclass(frozen=True)
class Crops:
    """Resizes an image, cuts out a box and resizes that to a square of bytes.

    A loader stacks the squares (`stacked`); `as_floats` converts a batch on its device. The trunk standardizes with its
    own mean and std.

    Args:
        settings: size of the square and how to resize.
        side: first resize the shorter side, or with `square` both sides, to this; None does not resize.
        box: draws the box with torch's global generator, given the image's size; None takes the centre.
        flip: whether to mirror half of the images; drawn after the box.
    """

    settings: ImageTransforms
    side: int | None
    box: v2.RandomResizedCrop | v2.RandomCrop | None
    flip: bool

    def __call__(self, image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
        """The square of an image."""
        size, how = self.settings.crop_size, self.settings.interpolation
        image = resized(image, self.side, self.settings.square, how)
        if self.box is None:
            top, left, height, width = round((image.height - size) / 2), round((image.width - size) / 2), size, size
        else:
            drawn = self.box.make_params([torch.empty(3, image.height, image.width, device="meta")])
            top, left, height, width = (drawn[key] for key in ("top", "left", "height", "width"))
        square = np.asarray(resized(image.crop((left, top, left + width, top + height)), size, True, how))
        return square[:, ::-1] if self.flip and torch.rand(1).item() < 0.5 else square


def resized(image: Image.Image, side: int | None, square: bool, interpolation: Interpolation) -> Image.Image:
    """Resize an image so that its shorter side, or with `square` both sides, is `side`; None does not resize.

    Raises:
        UserError: the resized image of a thin one would have more pixels than Pillow accepts.
    """
    shorter, longer = sorted(image.size)
    if side is None or (side == shorter and not (square and longer > side)):
        return image
    width, height = (side if square else int(side * each / shorter) for each in image.size)
    if width * height > (Image.MAX_IMAGE_PIXELS or math.inf):
        raise UserError(
            f"{getattr(image, 'filename', 'an image')} has {image.width} x {image.height} pixels, too many when "
            f"resized to {width} x {height}: crop the image or remove it from the data set"
        )
    return image.resize((width, height), Image.Resampling[interpolation.upper()])


def stacked(squares: Sequence[UInt8[np.ndarray, "height width 3"]]) -> UInt8[Tensor, "batch 3 height width"]:
    """A batch in the memory format channels_last."""
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)


def as_floats(pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 3 height width"]:
    """The input of a trunk: values in [0, 1]."""
    return v2.functional.to_dtype(pixels, torch.float32, scale=True)
