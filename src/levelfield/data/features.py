"""A trunk's output for each sample, computed once and kept in a memory-mapped file; batches are rows of it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from levelfield.data import datasets
from levelfield.data.cache import cache_root, place_of, stamp_of
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.made_once import made_once
from levelfield.data.samplers import Draw
from levelfield.data.source import Source, opened
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms
from levelfield.errors import refuse_below
from levelfield.runtime.own_code import own_code
from levelfield.seeds import seed_of
from levelfield.storage.atomic import replaced
from levelfield.storage.lock import Lock
from levelfield.storage.provenance import computing_files, source_hash

# What turns a sample of a data set into what a trunk gets.
MADE_BY = ("levelfield.data.features", "levelfield.data.transforms", "levelfield.data.crops")


@dataclass(frozen=True)
class Features:
    """What is kept of each sample instead of the sample: the output of a frozen trunk.

    Args:
        views: 1 keeps one vector a sample, by the evaluation transform, to train and to evaluate on; V of 2 or more
            keep V vectors of each training sample, by the training transform, of which each draw takes one, and train
            on these alone.
        seed: of the views' transforms; a study gives its own.

    Raises:
        UserError: fewer than 1 view.
    """

    views: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_below(1, "data.features", views=self.views)


class Extractor(Protocol):
    """What makes features of samples: a trunk with its weights, on a device."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All but the samples that the features' bits depend on, as plain values."""

    def __call__(self, loader: DataLoader) -> Iterator[Float[np.ndarray, "batch features"]]:
        """Features of the samples of each of the loader's batches, float32."""


class Views(Dataset[Any]):
    """The samples of an index, each as one of its views.

    Args:
        source: opens the samples.
        transform: makes a view of a sample; drawn by (seed, view, the sample's key).
    """

    def __init__(
        self,
        source: Source,
        index: SampleIndex,
        transform: Callable[[Any], Any] | None,
        seed: int,
        view: int,
    ) -> None:
        self.source, self.index, self.transform = source, index, transform
        self.seed, self.view = seed, view

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, position: int) -> Any:
        key = self.index.keys[position]
        sample = self.source.load(key)
        if self.transform is None:
            return sample
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of("view", self.seed, self.view, key))
            return self.transform(sample)


class FeatureSubset(ClassSubset):
    """The samples of a `ClassSubset` as features: batches are rows of a tensor, and no sample is opened.

    `subset[[draw, draw, ...]]` is `{"features": (B, F), "labels": (B,), "index": (B,)}`. Of several views a draw takes
    the one that (seed, draw number) gives.

    Args:
        subset: the samples, with their labels.
        half: all samples that have features, these among them.
        features: gives all features of `half`, (views, samples, F); called when a batch is asked for.

    Attributes:
        rows: where each sample stands among the features.
    """

    def __init__(
        self, subset: ClassSubset, half: SampleIndex, features: Callable[[], Float[Tensor, "views samples features"]]
    ) -> None:
        super().__init__(subset.dataset, subset.index, subset.transform, subset.seed)
        self._features = features
        self.rows: Int[Tensor, " samples"] = torch.from_numpy(np.flatnonzero(np.isin(half.labels, subset.classes)))
        self._labels = torch.from_numpy(self.labels)

    def __getitem__(self, draw: Draw | int | list[Draw]) -> dict[str, Tensor]:  # type: ignore[override]
        return self.__getitems__(draw if isinstance(draw, list) else [draw])

    def __getitems__(self, draws: Sequence[Draw | int]) -> dict[str, Tensor]:
        """A whole batch, for a loader that asks for it at once."""
        features = self._features()
        positions = torch.tensor([int(draw) for draw in draws])
        rows = self.rows[positions]
        if len(features) == 1:
            taken = features[0].index_select(0, rows)
        else:
            views = [seed_of("view taken", self.seed, _number(draw)) % len(features) for draw in draws]
            taken = features[torch.tensor(views), rows]
        return {"features": taken, "labels": self._labels[positions], "index": positions}


def whole_batch(batch: Any) -> Any:
    """The `collate_fn` of a `FeatureSubset`'s loader: a batch comes as it should be."""
    return batch


def features_of(
    dataset: MetricDataset,
    index: SampleIndex,
    transform: Callable[[Any], Any] | None,
    transforms: ImageTransforms,
    extractor: Extractor,
    loading: Mapping[str, Any],
    kept: Features | None = None,
) -> Float[Tensor, "views samples features"]:
    """The features of a half's samples: by the evaluation transform, or all views by the training transform.

    Args:
        transform: makes a view of a sample.
        transforms: says what `transform` does to an image.
        loading: arguments of the `DataLoader` that brings the samples to `extractor`.
        kept: how many views, and their seed; None for evaluation, which takes one.
    """
    views, seed = (1, 0) if kept is None else (kept.views, kept.seed)

    def batches(view: int) -> Iterator[np.ndarray]:
        yield from extractor(DataLoader(Views(opened(dataset, transforms), index, transform, seed, view), **loading))

    purpose = {
        "transforms": {} if dataset.modality == "text" else _in_words(transforms, train=kept is not None),
        "seed": seed,
        "batch_size": loading["batch_size"],  # the last bits of a feature depend on who comes along
        "files": [computing_files(Path(datasets.__file__).parent), *map(source_hash, MADE_BY)],
        "own_code": own_code(f"{type(dataset).__module__}.{type(dataset).__qualname__}"),
        "extractor": extractor.identity,
    }
    return prepare_features(dataset, index, purpose, views, batches)


def _in_words(transforms: ImageTransforms, train: bool) -> dict[str, Any]:
    """What of the transforms a view depends on."""
    every = asdict(transforms)
    if train:
        return every
    evaluated = {name: every[name] for name in ("crop_size", "square", "interpolation", "fast")}
    return {**evaluated, "least_side": transforms.least_side, "resize": transforms.eval_side}


def prepare_features(
    dataset: MetricDataset,
    index: SampleIndex,
    purpose: Mapping[str, Any],
    views: int,
    batches: Callable[[int], Iterator[Float[np.ndarray, "batch features"]]],
) -> Float[Tensor, "views samples features"]:
    """The features of `index`'s samples from their file, which is made first where there is none.

    The file lies in `features/` below `LEVELFIELD_CACHE` and is named for all that the features depend on, so that
    other samples, weights or transforms have another one. One process makes it while others wait; it is whole or
    absent, whenever a process is killed.

    Args:
        index: the samples, whose order is that of the features.
        purpose: what the features depend on beside the samples, as plain values.
        views: how many there are of each sample.
        batches: the features of a view, batch by batch in the samples' order.

    Raises:
        UserError: a sample that cannot be opened, or no room to write.
    """
    folder = cache_root() / "features"
    stamp = stamp_of(dataset, index)
    described = json.dumps([place_of(dataset), stamp, purpose, views], sort_keys=True, default=str)
    name = f"{dataset.name}-{sha256(described.encode()).hexdigest()[:32]}"
    file = folder / f"{name}.npy"
    shape = (views, len(index.keys))
    if (found := _mapped(file, shape)) is not None:
        return found
    return made_once(
        Lock(folder, name, f"features of {dataset.name}"),
        lambda: _mapped(file, shape),
        lambda: _make(file, shape, batches),
        f"features {file}",
        "--data.features",
    )


def _mapped(file: Path, shape: tuple[int, int]) -> Tensor | None:
    """What the file holds; None where there is none, or a damaged one."""
    try:
        # Copy on write: nothing is written, but torch takes no array that is read-only.
        array = np.load(file, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):  # absent, or not what numpy writes
        return None
    return torch.from_numpy(array) if array.ndim == 3 and array.shape[:2] == shape else None


def _make(file: Path, shape: tuple[int, int], batches: Callable[[int], Iterator[np.ndarray]]) -> None:
    print(f"computing the features of {shape[1]:,} samples once, into {file}", file=sys.stderr)
    begun = False
    # What a loader draws leaves the process's generator alone: later draws do not know whether the file was there.
    with torch.random.fork_rng(devices=[]), replaced(file) as opened:
        for view in range(shape[0]):
            for batch in batches(view):
                if not begun:
                    header = {"descr": "<f4", "fortran_order": False, "shape": (*shape, batch.shape[1])}
                    np.lib.format.write_array_header_1_0(opened, header)
                    begun = True
                opened.write(np.ascontiguousarray(batch, dtype="<f4").tobytes())


def _number(draw: Draw | int) -> int:
    return draw.number if isinstance(draw, Draw) else draw
