"""Features of a frozen trunk, computed once into a memory-mapped file; batches are rows of it."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader

from levelfield.core.paths import cache_root
from levelfield.core.source_identity import sources
from levelfield.data.dataset import SampleIndex
from levelfield.data.image_cache import digest, made_once
from levelfield.data.loaders import ClassSubset
from levelfield.data.own import class_and_arguments, dataset_spec
from levelfield.data.samplers import Draw
from levelfield.data.transforms import ImageTransforms


class Extractor(Protocol):
    """Computes features of samples: a trunk with its weights, on a device."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that features depend on, except the samples, as plain values."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Float[np.ndarray, "batch features"]]:
        """Features of each batch of samples, float32."""


class FeatureSubset(ClassSubset):
    """The samples of a `ClassSubset` as features: batches are rows of a tensor; no sample is opened.

    `subset[[draw, draw, ...]]` is `{"features": (B, F), "labels": (B,), "index": (B,)}`.

    Args:
        subset: the samples, with their labels.
        half: the samples of all rows of the features, including those of `subset`.
        features: returns the features, (rows, F); called for the first batch.

    Attributes:
        rows: the row of each sample in the features.
    """

    def __init__(
        self,
        subset: ClassSubset,
        half: SampleIndex,
        features: Callable[[], Float[Tensor, "rows features"]],
    ) -> None:
        super().__init__(subset.dataset, subset.index, subset.transform, subset.seed)
        self.features = features
        self.rows: Int[Tensor, " samples"] = torch.from_numpy(np.flatnonzero(np.isin(half.labels, subset.classes)))
        self._labels = torch.from_numpy(self.labels)
        self._positions = torch.from_numpy(self.positions)

    def __getitem__(self, draw: Draw | int | list[Draw]) -> dict[str, Tensor]:  # type: ignore[override]
        return self.__getitems__(draw if isinstance(draw, list) else [draw])

    def __getitems__(self, draws: Sequence[Draw | int]) -> dict[str, Tensor]:
        """A whole batch at once, for a loader."""
        drawn = torch.tensor([int(draw) for draw in draws])
        taken = self.features().index_select(0, self.rows[drawn])
        return {"features": taken, "labels": self._labels[drawn], "index": self._positions[drawn]}


def features_of(
    batches: DataLoader, fingerprint: str, transforms: Any, extractor: Extractor
) -> Float[Tensor, "samples features"]:
    """The features of a loader's samples from their file below `LEVELFIELD_CACHE`, which is first computed if missing.

    Its name is a hash of everything that the features depend on: samples, weights, transforms, code, libraries, device,
    threads, and the size of a batch, which affects the rounding. One process computes it while others wait.

    Args:
        batches: each sample of a half once, in order, with the evaluation transform.
        fingerprint: that of the samples.
        transforms: the data's; None for texts.

    Raises:
        UserError: a sample that cannot be opened, or no space.
    """
    subset: Any = batches.dataset
    dataset, samples, spec = subset.dataset, len(subset), dataset_spec(subset.dataset)
    settings: Any = transforms and class_and_arguments(transforms)
    if isinstance(transforms, ImageTransforms):  # augmentation changes no feature
        settings = [transforms.crop_size, transforms.eval_side, transforms.square, transforms.interpolation]
    parts = {"dataset": spec, "transforms": settings}
    name = digest(fingerprint, parts, sources(parts), batches.batch_size, dict(extractor.identity))
    file = cache_root() / "features" / f"{dataset.name}-{name}.f32"

    def read(file: Path) -> Tensor:
        # Copy on write, because torch takes no read-only array; nothing is written.
        return torch.from_numpy(np.memmap(file, "<f4", "c").reshape(samples, -1).view(np.ndarray))

    def write() -> Iterator[bytes]:
        print(f"computing the features of {samples:,} samples once, into {file}", file=sys.stderr)
        for rows in extractor(batch[0] for batch in batches):
            yield np.ascontiguousarray(rows, "<f4").tobytes()

    return made_once(file, read, write, f"features of {dataset.name}", "--data.features")
