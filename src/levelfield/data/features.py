"""Features of a frozen trunk, computed once into a memory-mapped file; batches are rows of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from levelfield.core.errors import UserError
from levelfield.core.source_identity import sources
from levelfield.core.versions import computing_files, source_hash
from levelfield.data import datasets
from levelfield.data.crops import load
from levelfield.data.dataset import MetricDataset
from levelfield.data.feature_file import prepare_features
from levelfield.data.index import SampleIndex
from levelfield.data.own import transforms_spec
from levelfield.data.samplers import Draw
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms, Transforms

# The files that turn a sample into the input of a trunk.
MADE_BY = ("levelfield.data.features", "levelfield.data.transforms", "levelfield.data.crops")


class Extractor(Protocol):
    """Computes features of samples: a trunk with its weights, on a device."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that features depend on, except the samples, as plain values."""

    def __call__(self, loader: DataLoader) -> Iterator[Float[np.ndarray, "batch features"]]:
        """Features of each of the loader's batches, float32."""


class EachOnce(Dataset[Any]):
    """The samples of an index in their order, with the evaluation transform.

    Args:
        dataset: opens the samples.
        transform: applied to each sample; None leaves samples as they are.
    """

    def __init__(self, dataset: MetricDataset, index: SampleIndex, transform: Callable[[Any], Any] | None) -> None:
        self.dataset, self.index, self.transform = dataset, index, transform

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, position: int) -> Any:
        key = self.index.keys[position]
        try:
            sample = load(self.dataset, key, self.transform)
        except OSError as error:  # not one of writing the features
            raise UserError(f"cannot open {key}: {error}") from error
        return sample if self.transform is None else self.transform(sample)


class FeatureSubset(ClassSubset):
    """The samples of a `ClassSubset` as features: batches are rows of a tensor; no sample is opened.

    `subset[[draw, draw, ...]]` is `{"features": (B, F), "labels": (B,), "index": (B,)}`.

    Args:
        subset: the samples, with their labels.
        half: all samples with features, including those of `subset`.
        features: returns all features of `half`, (samples, F); called for the first batch.

    Attributes:
        rows: the row of each sample in the features.
    """

    def __init__(
        self, subset: ClassSubset, half: SampleIndex, features: Callable[[], Float[Tensor, "samples features"]]
    ) -> None:
        super().__init__(subset.dataset, subset.index, subset.transform, subset.seed)
        self._features = features
        self.rows: Int[Tensor, " samples"] = torch.from_numpy(np.flatnonzero(np.isin(half.labels, subset.classes)))
        self._labels = torch.from_numpy(self.labels)
        self._positions = torch.from_numpy(self.positions)

    def __getitem__(self, draw: Draw | int | list[Draw]) -> dict[str, Tensor]:  # type: ignore[override]
        return self.__getitems__(draw if isinstance(draw, list) else [draw])

    def __getitems__(self, draws: Sequence[Draw | int]) -> dict[str, Tensor]:
        """A whole batch at once, for a loader."""
        drawn = torch.tensor([int(draw) for draw in draws])
        taken = self._features().index_select(0, self.rows[drawn])
        return {"features": taken, "labels": self._labels[drawn], "index": self._positions[drawn]}


def whole_batch(batch: Any) -> Any:
    """The `collate_fn` of a `FeatureSubset`'s loader: the batch is already complete."""
    return batch


def features_of(
    dataset: MetricDataset,
    index: SampleIndex,
    transform: Callable[[Any], Any] | None,
    transforms: ImageTransforms | Transforms,
    extractor: Extractor,
    loading: Mapping[str, Any],
) -> Float[Tensor, "samples features"]:
    """The features of the samples of a half, with the evaluation transform.

    Args:
        transform: the evaluation transform of a sample.
        transforms: the settings of `transform`.
        loading: arguments of the `DataLoader` for `extractor`.
    """

    def batches(start: int, stop: int) -> Iterator[np.ndarray]:
        samples = EachOnce(dataset, index, transform)
        yield from extractor(DataLoader(Subset(samples, range(start, stop)), **loading))

    purpose = {
        "transforms": {} if dataset.modality == "text" else in_words(transforms),
        "batch_size": loading["batch_size"],  # the batch affects the rounding of features
        "files": [computing_files(Path(datasets.__file__).parent), *map(source_hash, MADE_BY)],
        "extractor": extractor.identity,
    }
    return prepare_features(dataset, index, purpose, loading["batch_size"], batches)


def in_words(transforms: Any) -> dict[str, Any]:
    """The settings of the transforms that features depend on."""
    if not isinstance(transforms, ImageTransforms):
        spec = transforms_spec(transforms)
        return {"own": spec, "sources": sources(spec)}
    evaluated = {name: getattr(transforms, name) for name in ("crop_size", "square", "interpolation", "draft")}
    return {**evaluated, "resize": transforms.eval_side}
