"""Image transforms of training and evaluation; the defaults are those of the Reality Check."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from PIL import Image
from torchvision.transforms import v2

from levelfield.errors import UserError

ImageTransform = Callable[[Image.Image], Float[torch.Tensor, "3 height width"]]


@dataclass(frozen=True)
class ImageTransforms:
    """Resized crop and flip for training, centre crop for evaluation ("A Metric Learning Reality Check", section 4.1).

    Args:
        crop_size: side of the square that the trunk sees, in pixels.
        resize: shorter side that an image is brought to before it is cropped, in pixels.
        scale: least and greatest share of the image's area in a training crop.
        ratio: least and greatest width / height of a training crop.
        horizontal_flip: mirror half of the training images; not for letters.
        square: bring both sides to `resize`, so that the aspect is lost (Zhai and Wu).
        random_crop: a training crop is `crop_size` wide and high where it is cut out, instead of brought to it;
            `scale` and `ratio` then say nothing.
        interpolation: between pixels, wherever an image is brought to a size.

    Raises:
        UserError: a crop that is larger than the resized image, or a range upside down.
    """

    crop_size: int = 227
    resize: int = 256
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    horizontal_flip: bool = True
    square: bool = False
    random_crop: bool = False
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if not 0 < self.crop_size <= self.resize:
            raise UserError(
                f"crop_size {self.crop_size} must be from 1 to resize, {self.resize}: lower it or raise resize"
            )
        for key in ("scale", "ratio"):
            low, high = getattr(self, key)
            if not 0 < low <= high:
                raise UserError(f"{key} ({low}, {high}) must be two positive numbers, the smaller one first")

    def reduce(self) -> Callable[[Image.Image], Image.Image]:
        """The first, fixed part of `train` and `evaluate`: an image of which it was done before stays as it is."""
        size = [self.resize, self.resize] if self.square else self.resize
        return v2.Resize(size, interpolation=self._interpolation)

    def train(self) -> ImageTransform:
        """RGB image -> (3, crop_size, crop_size) float32 in [0, 1]; draws from torch's global generator."""
        flip = [v2.RandomHorizontalFlip()] if self.horizontal_flip else []
        crop: torch.nn.Module = v2.RandomResizedCrop(
            self.crop_size, scale=self.scale, ratio=self.ratio, interpolation=self._interpolation
        )
        if self.random_crop:
            crop = v2.RandomCrop(self.crop_size)
        return v2.Compose([self.reduce(), crop, *flip, *_to_tensor()])

    def evaluate(self) -> ImageTransform:
        """RGB image -> (3, crop_size, crop_size) float32 in [0, 1], without randomness."""
        return v2.Compose([self.reduce(), v2.CenterCrop(self.crop_size), *_to_tensor()])

    @property
    def _interpolation(self) -> v2.InterpolationMode:
        return v2.InterpolationMode(self.interpolation)


def _to_tensor() -> list[torch.nn.Module]:
    """Values in [0, 1]; the trunk standardises them with its own mean and std."""
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
