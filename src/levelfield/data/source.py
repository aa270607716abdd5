"""Where a loader gets images: from files, or from the image cache."""

from functools import partial
from typing import Any, Literal

from levelfield.data.cache import PreparedImages, prepared_images
from levelfield.data.crops import Picture, load
from levelfield.data.dataset import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.transforms import ImageTransforms

Source = MetricDataset | PreparedImages


def source_of(
    dataset: MetricDataset, index: SampleIndex, half: str, transforms: Any, cache: bool | Literal["auto"]
) -> Source:
    """The object that opens the samples of one half.

    Args:
        half: names of the split and the half.
        transforms: with the user's own class, images are read unchanged.
        cache: as in `MetricDataModule`.
    """
    if not cache or not isinstance(transforms, ImageTransforms):
        return dataset
    purpose: dict[str, Any] = {
        "half": half,
        "reduce": [transforms.reduced, transforms.square, transforms.interpolation, transforms.draft],
    }
    read = partial(_reduced, dataset, transforms)
    return prepared_images(dataset, index, read, purpose, where_it_pays=cache == "auto") or dataset


def _reduced(dataset: Any, transforms: ImageTransforms, key: str) -> Picture:
    return transforms.reduce()(load(dataset, key, transforms.reduced and transforms.evaluate()))
