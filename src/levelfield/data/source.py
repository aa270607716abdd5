"""Where a loader gets images from: their files, read whole or at a smaller scale, or the prepared cache."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from levelfield.data.cache import PreparedImages, prepare_images, prepared_where_it_pays
from levelfield.data.crops import Picture
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.datasets.images import AtLeast
from levelfield.data.index import SampleIndex
from levelfield.data.transforms import ImageTransforms

Source = MetricDataset | AtLeast | PreparedImages


def opened(dataset: MetricDataset, transforms: ImageTransforms) -> MetricDataset | AtLeast:
    """The data set, as `fast` transforms open its files."""
    side = transforms.least_side
    return dataset if side is None or dataset.modality == "text" else AtLeast(dataset, side)


def source_of(
    dataset: MetricDataset, index: SampleIndex, half: str, transforms: ImageTransforms, cache: bool | Literal["auto"]
) -> Source:
    """What opens the samples of a half, and of no other.

    Args:
        half: its name, with the split's.
        cache: `MetricDataModule`'s.
    """
    source = opened(dataset, transforms)
    if not cache:
        return source
    purpose: dict[str, Any] = {
        "half": half,
        "reduce": [transforms.reduced, transforms.square, transforms.interpolation],
    }
    if transforms.least_side is not None:
        purpose["least_side"] = transforms.least_side
    read = partial(_reduced, source, transforms.reduce())
    if cache == "auto":
        return prepared_where_it_pays(dataset, index, read, purpose) or source
    return prepare_images(dataset, index, read, purpose)


def _reduced(source: Any, reduce: Callable[[Picture], Picture], key: str) -> Picture:
    return reduce(source.load(key))
