"""The samples of some classes of a data set, transformed, with labels from 0."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from PIL import Image
from torch.utils.data import Dataset

from levelfield.core.seeds import seed_of
from levelfield.data.crops import Crops, load
from levelfield.data.index import SampleIndex
from levelfield.data.samplers import Draw
from levelfield.data.source import Source


class ClassSubset(Dataset[tuple[Any, int, int]]):
    """`subset[draw] -> (transformed sample, label, index)` for the samples in `index` only.

    `subset[[draw, draw, ...]]` is a list of such triples, for a sampler of whole batches.

    `index` is the position in the data set. What a transform draws from the generators of torch, NumPy and `random`
    depends only on (seed, draw number); a plain integer is its own draw number. The generators then continue as before.

    Args:
        dataset: opens the samples, or returns the object that does, at the first sample.
        index: the samples, selected from `dataset.read_index()`.
        transform: applied to each sample; None leaves samples as they are.
        seed: seed of the transform's randomness.

    Attributes:
        classes: the classes in `index`, in order.
        labels: the position in `classes` of each sample's class.
        positions: the position of each sample in the data set.
    """

    def __init__(
        self,
        dataset: Source | Callable[[], Source],
        index: SampleIndex,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
    ) -> None:
        self._dataset = dataset
        self.index = index
        self.transform = transform
        self.seed = seed
        classes, self.labels = np.unique(index.labels, return_inverse=True)
        self.classes: tuple[int, ...] = tuple(classes.tolist())
        self.positions = np.arange(len(index.keys)) if index.positions is None else index.positions

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of `classes`, by label."""
        return tuple(self.index.class_names[c] for c in self.classes)

    @property
    def is_query(self) -> Bool[np.ndarray, " samples"] | None:
        """Which samples are queries; None makes each sample a query among all others."""
        if not any(self.index.roles or ()):
            return None
        return np.array([role == "query" for role in self.index.roles or ()])

    @property
    def dataset(self) -> Source:
        """The object that opens the samples."""
        if callable(self._dataset):
            self._dataset = self._dataset()
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_dataset": self.dataset}

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, draw: Draw | int | list[Draw]) -> Any:
        return [self._open(each) for each in draw] if isinstance(draw, list) else self._open(draw)

    def _open(self, draw: Draw | int) -> tuple[Any, int, int]:
        position, number = int(draw), draw.number if isinstance(draw, Draw) else int(draw)
        sample = load(self.dataset, self.index.keys[position], self.transform)
        crops = getattr(self.transform, "__self__", self.transform)
        if isinstance(sample, np.ndarray) and not isinstance(crops, Crops):
            sample = Image.fromarray(sample)  # for your own transforms
        if self.transform is not None and isinstance(crops, Crops) and not crops.draws:
            sample = self.transform(sample)
        elif self.transform is not None:
            with _seeded("sample", self.seed, number, every=not isinstance(crops, Crops)):
                sample = self.transform(sample)
        return sample, int(self.labels[position]), int(self.positions[position])


@contextmanager
def _seeded(*key: str | int, every: bool) -> Iterator[None]:
    """Seed torch's generator, or `every` one: saving NumPy's takes as long as a small crop, which draws none of it."""
    states = (np.random.get_state(), random.getstate()) if every else None
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed the generators of GPUs, which are not restored here.
        torch.default_generator.manual_seed(seed_of(*key))
        if states is None:
            yield
            return
        np.random.seed(seed_of(*key, bits=32))
        random.seed(seed_of(*key))
        try:
            yield
        finally:
            np.random.set_state(states[0])
            random.setstate(states[1])
