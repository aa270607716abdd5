"""Image transforms of training and evaluation; the defaults are those of the Reality Check."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from torchvision.transforms import v2

from levelfield.data.crops import Crops, Interpolation, Picture, brought_to
from levelfield.errors import UserError


@runtime_checkable
class Transforms(Protocol):
    """What `--data.transforms my_aug.Mine` names: any class with these two methods.

    They have no annotations here, for jsonargparse would ask the user's class for the same.
    """

    def train(self):  # type: ignore[no-untyped-def]
        """What is done to a training image, an RGB image, before it joins a batch; it may draw by torch's generator."""

    def evaluate(self):  # type: ignore[no-untyped-def]
        """What is done to an image that is embedded, without randomness."""


@dataclass(frozen=True)
class ImageTransforms:
    """Resized crop and flip for training, centre crop for evaluation ("A Metric Learning Reality Check", section 4.1).

    Args:
        crop_size: side of the square that the trunk sees, in pixels.
        resize: shorter side that an image is brought to before it is cropped, in pixels. None cuts a training crop out
            of the image as it is, and `eval_resize` says what evaluation does.
        eval_resize: the same for evaluation alone; None takes `resize`.
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
            raise UserError("resize null crops the training images as they are: say what evaluation does, eval_resize")
        if self.resize is None and (self.square or self.random_crop):
            raise UserError("square and random_crop need all images in one size: give resize")
        for key, resize in (("resize", self.resize), ("eval_resize", self.eval_resize)):
            if resize is not None and not 0 < self.crop_size <= resize:
                raise UserError(
                    f"crop_size {self.crop_size} must be from 1 to {key}, {resize}: lower it or raise {key}"
                )
        for key in ("scale", "ratio"):
            low, high = getattr(self, key)
            if not 0 < low <= high:
                raise UserError(f"{key} ({low}, {high}) must be two positive numbers, the smaller one first")

    @property
    def reduced(self) -> int | None:
        """What `reduce` brings an image to; None where training and evaluation do not begin alike."""
        return self.resize if self.resize == self.eval_side else None

    def reduce(self) -> Callable[[Picture], Picture]:
        """The first, fixed part of both `train` and `evaluate`: an image of which it was done before stays as it is."""
        return partial(brought_to, side=self.reduced, square=self.square, interpolation=self.interpolation)

    def train(self) -> Crops:
        """RGB image -> (3, crop_size, crop_size) float32 in [0, 1]; draws from torch's global generator."""
        box: v2.RandomCrop | v2.RandomResizedCrop
        if self.random_crop:
            box = v2.RandomCrop(self.crop_size)
        else:
            box = v2.RandomResizedCrop(self.crop_size, scale=self.scale, ratio=self.ratio)
        return self._crops(self.resize, box, self.horizontal_flip)

    def evaluate(self) -> Crops:
        """RGB image -> (3, crop_size, crop_size) float32 in [0, 1], without randomness."""
        return self._crops(self.eval_side, None, flip=False)

    def _crops(self, side: int | None, box: v2.RandomCrop | v2.RandomResizedCrop | None, flip: bool) -> Crops:
        return Crops(self.crop_size, side, self.square, self.interpolation, box, flip)

    @property
    def eval_side(self) -> int | None:
        """The shorter side that evaluation brings an image to."""
        return self.resize if self.eval_resize is None else self.eval_resize
