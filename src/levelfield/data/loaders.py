"""From the samples of some classes to batches: `ClassSubset` -> `loader`; `LedgerLoader` for test samples."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Int
from torch.utils.data import DataLoader, Dataset, default_collate

from levelfield.core.errors import UserError
from levelfield.core.ledger import Evaluation, begin
from levelfield.core.processes import cores_here, in_processes
from levelfield.core.seeds import seed_of
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.image_cache import CachedImages
from levelfield.data.samplers import Draw
from levelfield.data.transforms import Crops, as_floats, stacked

MOST_PROCESSES = 8  # enough for a GPU with an image cache; more would only use memory
ON_CPU, ON_GPU = 64, 256  # samples that are embedded together


class ClassSubset(Dataset[tuple[Any, int, int]]):
    """`subset[draw] -> (transformed sample, label, position in the data set)` for the samples in `index` only.

    `subset[[draw, draw, ...]]` is a list of such triples. What a transform draws from the generators of torch, NumPy
    and `random` depends only on (seed, draw number); a plain integer is its own draw number. The generators then
    continue as before.

    Args:
        dataset: opens the samples.
        index: the samples, selected from `dataset.read_index()`.
        transform: applied to each sample; None leaves samples as they are. `Crops` gives squares of bytes.
        seed: seed of the transform's randomness.
        cache: returns the cache of the images, or None without one; called at the first use.

    Attributes:
        classes: the classes in `index`, in order; `class_names` are their names.
        labels: the position in `classes` of each sample's class.
        positions: the position of each sample in the data set.
        groups: the group of each sample; those of the query's class and group leave its gallery.
    """

    def __init__(
        self,
        dataset: MetricDataset,
        index: SampleIndex,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
        cache: Callable[[], CachedImages | None] = lambda: None,
    ) -> None:
        self.dataset, self.index, self.transform, self.seed, self.cache = dataset, index, transform, seed, cache
        classes, self.labels = np.unique(index.labels, return_inverse=True)
        self.classes: tuple[int, ...] = tuple(classes.tolist())
        self.class_names = tuple(index.class_names[c] for c in self.classes)
        self.positions = np.arange(len(index.keys)) if index.positions is None else index.positions
        self.groups: Int[np.ndarray, " samples"] | None = index.groups

    @property
    def is_query(self) -> Bool[np.ndarray, " samples"] | None:
        """Which samples are queries; None makes each sample a query among all others."""
        if not any(self.index.roles or ()):
            return None
        return np.array([role == "query" for role in self.index.roles or ()])

    @cached_property
    def images(self) -> CachedImages | None:
        """The cache of the images; None opens them from the data set."""
        return self.cache()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "images": self.images, "cache": None}

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, draw: Draw | int | list[Draw]) -> Any:
        return [self._open(each) for each in draw] if isinstance(draw, list) else self._open(draw)

    def _open(self, draw: Draw | int) -> tuple[Any, int, int]:
        row, number = int(draw), draw.number if isinstance(draw, Draw) else int(draw)
        position = int(self.positions[row])
        transform, images = self.transform, self.images
        sample: Any = images[position] if images is not None else self.dataset.load(self.index.keys[row])
        if isinstance(transform, Crops) and transform.box is None and not transform.flip:
            sample = transform(sample)
        elif transform is not None:
            from lightning.pytorch.utilities.seed import isolate_rng  # takes three seconds

            key, only_torch = ("sample", self.seed, number), isinstance(transform, Crops)
            # Saving NumPy's generator takes as long as a small crop, which draws nothing from it.
            with torch.random.fork_rng(devices=[]) if only_torch else isolate_rng(include_cuda=False):
                # torch.manual_seed would also seed the generators of GPUs, which are not restored here.
                torch.default_generator.manual_seed(seed_of(*key))
                if not only_torch:
                    np.random.seed(seed_of(*key, bits=32))
                    random.seed(seed_of(*key))
                sample = transform(sample)
        return sample, int(self.labels[row]), position


def loader(
    subset: ClassSubset,
    processes: int,
    on_gpu: bool,
    persistent: bool = False,
    kind: Callable[..., DataLoader] = DataLoader,
    **how: Any,
) -> DataLoader:
    """Batches of a subset, `[samples, labels, index]`; squares of bytes become floats in [0, 1], channels_last.

    For a GPU they stay bytes, a quarter of the size, which become floats there (`transforms.as_floats`).

    Args:
        processes: number of loader processes; with `persistent` they stay alive for another pass.
        kind: class of the loader.
        how: more arguments of the `DataLoader`.
    """
    _ = subset.images  # a cache is made here, in this process
    collate = partial(_triples, as_bytes=on_gpu)
    return kind(subset, collate_fn=collate, **in_processes(processes, on_gpu, persistent), **how)


def _triples(samples: list[tuple[Any, int, int]], as_bytes: bool) -> list[Any]:
    contents, labels, index = zip(*samples, strict=True)
    return [batch_of(contents, as_bytes), torch.tensor(labels), torch.tensor(index)]


def batch_of(samples: Sequence[Any], as_bytes: bool) -> Any:
    """Squares of bytes as one tensor of floats in [0, 1] or of bytes; other samples by torch's `default_collate`."""
    if isinstance(samples[0], np.ndarray) and samples[0].dtype == np.uint8:
        return stacked(samples) if as_bytes else as_floats(stacked(samples))
    return default_collate([*samples])


def loader_processes(
    asked: int | Literal["auto"], modality: str, on_gpu: bool, trainings: int = 1, decodes: bool = True
) -> int:
    """The number of loader processes of one training; `auto` as in `MetricDataModule`.

    Args:
        trainings: number of processes of this node that train together, each with its own loaders.
        decodes: whether images are decoded, not read from their cache.
    """
    if asked != "auto":
        return asked
    if modality == "text" or not on_gpu:  # on a CPU the model needs all cores
        return 0
    processes = cores_here(trainings) - 1
    return processes if decodes else min(processes, MOST_PROCESSES)


def embedded_together(asked: int | Literal["auto"], on_gpu: bool) -> int:
    """The number of samples in a batch for embedding."""
    return (ON_GPU if on_gpu else ON_CPU) if asked == "auto" else asked


class LedgerLoader(DataLoader):
    """Batches of test samples. Each pass is an evaluation, and its line is in the ledger before the first batch.

    If a `DistributedSampler` divides them over processes, the first one writes the line and the others wait.

    Args:
        evaluation: id of the line in the ledger, if the caller has written it. None writes a line for each pass.

    Raises:
        UserError: the line cannot be written; raised on every waiting process.
    """

    def __init__(self, *args: Any, evaluation: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subset: Any = self.dataset  # a ClassSubset
        self.evaluation = evaluation

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A generator, because a Trainer gets the iterator before its callbacks write a line, and the batches after it.
        if self.evaluation is None:
            if getattr(self.sampler, "num_replicas", 1) > 1:
                first_process_does(self._line)
            elif not _in_group() or dist.get_rank() == 0:
                self._line()
        yield from super().__iter__()

    def sample_hashes(self) -> list[str]:
        """A hash of each sample, as in the ledger."""
        return self.subset.dataset.contents_of(self.subset.index.keys)

    def _line(self) -> str:
        return begin(Evaluation(self.subset.dataset.name, self.sample_hashes(), by="test_dataloader"))


def first_process_does(work: Callable[[], str]) -> str:
    """The result of `work` in the first process of the group. All processes get it, or all raise its error.

    Raises:
        UserError: `work` raised a UserError.
        RuntimeError: `work` raised another error, in another process.
    """
    if not _in_group():
        return work()
    outcome: list[Any] = ["", None]
    failed: Exception | None = None
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:
            failed = error
            outcome[1] = (UserError if isinstance(error, UserError) else RuntimeError)(str(error))
    dist.broadcast_object_list(outcome)  # if only the first process raised the error, the others would wait for it
    if failed or outcome[1]:
        raise failed or outcome[1]
    return outcome[0]


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
