"""A trunk's output for each sample, computed once and kept in a memory-mapped file; batches are rows of it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from levelfield.data.cache import PreparedImages, cache_root, place_of, stamp_of
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.samplers import Draw
from levelfield.data.subset import ClassSubset
from levelfield.errors import FileRefused, UserError
from levelfield.seeds import seed_of
from levelfield.storage.atomic import replaced
from levelfield.storage.lock import Lock


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
        if self.views < 1:
            raise UserError(f"--data.features.views {self.views}: give 1 or more")


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
        source: MetricDataset | PreparedImages,
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
        rows: where each of them stands among the features.
        features: gives all features, (views, samples, F); called when a batch is asked for.
    """

    def __init__(self, subset: ClassSubset, rows: Int[np.ndarray, " samples"], features: Callable[[], Tensor]) -> None:
        super().__init__(subset.dataset, subset.index, subset.transform, subset.seed)
        self._features = features
        self.rows = torch.from_numpy(rows)
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


def whole_batch(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The `collate_fn` of a `FeatureSubset`'s loader: a batch comes as it should be."""
    return batch


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
    stamp = dataset.once(("stamp", index.keys), lambda: stamp_of(dataset, index))
    described = json.dumps([place_of(dataset), stamp, purpose, views], sort_keys=True, default=str)
    name = f"{dataset.name}-{sha256(described.encode()).hexdigest()[:32]}"
    file = folder / f"{name}.npy"
    shape = (views, len(index.keys))
    found = _mapped(file, shape)
    if found is not None:
        return found
    try:
        with Lock(folder, name, f"features of {dataset.name}"):
            found = _mapped(file, shape)
            if found is None:
                print(f"computing the features of {len(index.keys):,} samples once, into {file}", file=sys.stderr)
                with torch.random.fork_rng(devices=[]):  # of what a loader draws: later draws do not know of a file
                    _make(file, shape, batches)
                found = _mapped(file, shape)
    except (OSError, FileRefused) as error:  # the latter is the lock's
        raise UserError(
            f"cannot write the features {file} ({error.strerror}): make room there, give another folder by the "
            "environment variable LEVELFIELD_CACHE, or leave --data.features out"
        ) from None
    assert found is not None
    return found


def _mapped(file: Path, shape: tuple[int, int]) -> Tensor | None:
    """What the file holds; None where there is none, or a damaged one."""
    try:
        # Copy on write: nothing is written, but torch takes no array that is read-only.
        array = np.load(file, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):  # absent, or not what numpy writes
        return None
    return torch.from_numpy(array) if array.ndim == 3 and array.shape[:2] == shape else None


def _make(file: Path, shape: tuple[int, int], batches: Callable[[int], Iterator[np.ndarray]]) -> None:
    with replaced(file) as opened:
        begun = False
        for view in range(shape[0]):
            for batch in batches(view):
                if not begun:
                    header = {"descr": "<f4", "fortran_order": False, "shape": (*shape, batch.shape[1])}
                    np.lib.format.write_array_header_1_0(opened, header)
                    begun = True
                opened.write(np.ascontiguousarray(batch, dtype="<f4").tobytes())


def _number(draw: Draw | int) -> int:
    return draw.number if isinstance(draw, Draw) else draw
