"""A trunk's output for each sample, computed once and kept in a memory-mapped file; batches are rows of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from levelfield.data import datasets
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.feature_file import prepare_features
from levelfield.data.index import SampleIndex
from levelfield.data.samplers import Draw
from levelfield.data.source import Source
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms
from levelfield.errors import refuse_below
from levelfield.runtime.own_code import own_code
from levelfield.seeds import seed_of
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

    def batches(view: int, start: int, stop: int) -> Iterator[np.ndarray]:
        samples = Views(dataset, index, transform, seed, view)
        yield from extractor(DataLoader(Subset(samples, range(start, stop)), **loading))

    purpose = {
        "transforms": {} if dataset.modality == "text" else _in_words(transforms, train=kept is not None),
        "seed": seed,
        "batch_size": loading["batch_size"],  # the last bits of a feature depend on who comes along
        "files": [computing_files(Path(datasets.__file__).parent), *map(source_hash, MADE_BY)],
        "own_code": own_code(f"{type(dataset).__module__}.{type(dataset).__qualname__}"),
        "extractor": extractor.identity,
    }
    return prepare_features(dataset, index, purpose, views, loading["batch_size"], batches)


def _in_words(transforms: ImageTransforms, train: bool) -> dict[str, Any]:
    """What of the transforms a view depends on."""
    every = asdict(transforms)
    if train:
        return every
    evaluated = {name: every[name] for name in ("crop_size", "square", "interpolation")}
    return {**evaluated, "resize": transforms.eval_side}


def _number(draw: Draw | int) -> int:
    return draw.number if isinstance(draw, Draw) else draw
