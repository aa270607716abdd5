"""Image transforms for training and evaluation; the defaults are those of the Reality Check."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from torchvision.transforms import v2

from levelfield.core.errors import UserError
from levelfield.data.crops import Crops, Interpolation, Picture, brought_to


@runtime_checkable
class Transforms(Protocol):
    """Interface of `--data.transforms my_aug.Mine`: any class with these two methods.

    The methods have no annotations, because jsonargparse would require them in the user's class.
    """

    def train(self):  # type: ignore[no-untyped-def]
        """The transform of a training image (RGB); it may draw from torch's, NumPy's and Python's global generators."""

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
        draft: decode a large JPEG file at 1/2, 1/4 or 1/8 of its size, but at least at twice `resize`: faster, with
            slightly other pixels, so it is off in the papers' protocols.

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
    draft: bool = False

    def __post_init__(self) -> None:
        if self.eval_side is None:
            raise UserError("resize null crops original training images: give eval_resize for evaluation")
        if self.resize is None and (self.square or self.random_crop or self.draft):
            raise UserError("square, random_crop and draft need images of one size: give resize")
        for key, resize in (("resize", self.resize), ("eval_resize", self.eval_resize)):
            if resize is not None and not 0 < self.crop_size <= resize:
                raise UserError(
                    f"crop_size {self.crop_size} must be from 1 to {key} ({resize}): lower it or raise {key}"
                )
        for key in ("scale", "ratio"):
            low, high = getattr(self, key)
            if not 0 < low <= high:
                raise UserError(f"{key} ({low}, {high}) must be two positive numbers, the smaller one first")

    @property
    def reduced(self) -> int | None:
        """The size after `reduce`; None if training and evaluation begin differently."""
        return self.resize if self.resize == self.eval_side else None

    def reduce(self) -> Callable[[Picture], Picture]:
        """The first, fixed step of `train` and `evaluate`; it leaves a reduced image unchanged."""
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
        return Crops(self.crop_size, side, self.square, self.interpolation, box, flip, self.draft)

    @property
    def eval_side(self) -> int | None:
        """The shorter side of an image in evaluation."""
        return self.resize if self.eval_resize is None else self.eval_resize
