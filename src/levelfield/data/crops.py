"""Square crops of images as bytes; a loader stacks them, and the device converts them to floats."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from levelfield.core.errors import UserError
from levelfield.data.images import drafts

Picture = Image.Image | UInt8[np.ndarray, "height width 3"]
Interpolation = Literal["bilinear", "bicubic"]


class Crops:
    """Resizes an image, cuts out a box and resizes that to a square.

    A call on an image returns (3, crop_size, crop_size) float32 in [0, 1]; the trunk standardizes with its own mean and
    std. A loader calls `pixels` instead, which does not divide by 255, and stacks the results (`stacked`, `as_floats`).

    Args:
        crop_size: side of the square, in pixels.
        side: first resize the shorter side, or with `square` both sides, to this; None does not resize.
        box: draws the box with torch's global generator, given the image's size; None takes the centre.
        flip: whether to mirror half of the images; drawn after the box.
        draft: whether `load` may decode JPEG files at a reduced scale.
    """

    def __init__(
        self,
        crop_size: int,
        side: int | None,
        square: bool,
        interpolation: Interpolation,
        box: v2.RandomResizedCrop | v2.RandomCrop | None,
        flip: bool,
        draft: bool = False,
    ) -> None:
        self.crop_size, self.side, self.square, self.interpolation = crop_size, side, square, interpolation
        self.box, self.flip, self.draft = box, flip, draft

    @property
    def draws(self) -> bool:
        """Whether the crop is random."""
        return self.box is not None or self.flip

    def __call__(self, image: Picture) -> Float[Tensor, "3 height width"]:
        return as_floats(stacked([self.pixels(image)]))[0].contiguous()

    def pixels(self, image: Picture) -> UInt8[np.ndarray, "height width 3"]:
        """The square of a Pillow image or of its bytes."""
        image = brought_to(image, self.side, self.square, self.interpolation)
        top, left, height, width = self._box(*_size(image))
        if isinstance(image, Image.Image):
            image = image.crop((left, top, left + width, top + height))
        else:
            image = image[top : top + height, left : left + width]
        square = np.asarray(brought_to(image, self.crop_size, True, self.interpolation))
        return square[:, ::-1] if self.flip and torch.rand(1).item() < 0.5 else square

    def _box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width of the crop."""
        if self.box is not None:
            drawn = self.box.make_params([torch.empty(3, height, width, device="meta")])
            return drawn["top"], drawn["left"], drawn["height"], drawn["width"]
        size = self.crop_size
        return round((height - size) / 2), round((width - size) / 2), size, size


def load(source: Any, key: Any, transform: Any) -> Any:
    """A sample for a transform: a JPEG file with twice the pixels a side that `Crops` with `draft` resizes to."""
    crops = getattr(transform, "__self__", transform)
    if not (isinstance(crops, Crops) and crops.draft and crops.side):
        return source.load(key)
    with drafts(2 * crops.side):
        return source.load(key)


def brought_to(image: Picture, side: int | None, square: bool, interpolation: Interpolation) -> Picture:
    """Resize an image so that its shorter side, or with `square` both sides, is `side`; None does not resize.

    Raises:
        UserError: the resized image of a thin one would have more pixels than Pillow accepts.
    """
    sides = _size(image)
    if side is None or (side == min(sides) and not (square and max(sides) > side)):
        return image
    pillow = image if isinstance(image, Image.Image) else Image.fromarray(np.ascontiguousarray(image))
    width, height = (side if square else int(side * each / min(sides)) for each in pillow.size)
    if width * height > (Image.MAX_IMAGE_PIXELS or math.inf):
        raise UserError(
            f"{getattr(pillow, 'filename', 'an image')} has {pillow.width} x {pillow.height} pixels, too many when "
            f"resized to {width} x {height}: crop the image or remove it from the data set"
        )
    return pillow.resize((width, height), Image.Resampling[interpolation.upper()])


def stacked(squares: Sequence[UInt8[np.ndarray, "height width 3"]]) -> UInt8[Tensor, "batch 3 height width"]:
    """A batch in the memory format channels_last."""
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)


def stacked_floats(squares: Sequence[UInt8[np.ndarray, "height width 3"]]) -> Float[Tensor, "batch 3 height width"]:
    """The same bits as `as_floats(stacked(squares))`, with NumPy: torch would start threads in each thread."""
    floats = np.multiply(np.stack(squares), np.float32(1 / 255), dtype=np.float32)
    return torch.from_numpy(floats).permute(0, 3, 1, 2)


def as_floats(pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 3 height width"]:
    """The input of a trunk: values in [0, 1]."""
    return v2.functional.to_dtype(pixels, torch.float32, scale=True)


def _size(image: Picture) -> tuple[int, int]:
    return (image.height, image.width) if isinstance(image, Image.Image) else image.shape[:2]
