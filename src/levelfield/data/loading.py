"""Loaders of a subset: how samples become batches, and how many processes open them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from levelfield.core.processes import cores_here, in_processes
from levelfield.data.crops import Crops, stacked, stacked_floats
from levelfield.data.features import FeatureSubset, whole_batch
from levelfield.data.subset import ClassSubset

# Enough for a GPU with an image cache; more would only use memory.
MOST_PROCESSES = 8
# Samples that are embedded together, on a CPU and on a GPU.
ON_CPU, ON_GPU = 64, 256


def loader(
    subset: ClassSubset,
    processes: int,
    on_gpu: bool,
    persistent: bool = False,
    kind: Callable[..., DataLoader] = DataLoader,
    **how: Any,
) -> DataLoader:
    """Batches of a subset: a list of samples, labels and index, or `FeatureSubset`'s dictionaries.

    The loader stacks images as bytes and yields floats in [0, 1], in the memory format channels_last. For a GPU it
    yields bytes, a quarter of the size, which become floats on the GPU (`crops.as_floats`).

    Args:
        processes: number of loader processes; features need none.
        persistent: whether these stay alive for another pass.
        kind: class of the loader.
        how: more arguments of the `DataLoader`.
    """
    if isinstance(subset, FeatureSubset):
        return kind(subset, collate_fn=whole_batch, pin_memory=on_gpu, **how)
    collate: Any = default_collate
    transform = subset.transform
    if isinstance(transform, Crops):
        transform, collate = transform.pixels, partial(_image_batch, as_bytes=on_gpu)
    subset = ClassSubset(subset.dataset, subset.index, transform, subset.seed)  # writes a cache here, in this process
    return kind(subset, collate_fn=collate, **in_processes(processes, on_gpu, persistent), **how)


def opened_ahead(batches: DataLoader) -> Iterator[Any]:
    """The batches of a loader; without loader processes, a thread opens the next batch of images in advance.

    Pillow decodes and resizes without Python's global lock. The thread ends with the last batch, or when the iterator
    is closed; errors are raised with their batch. Random crops run in the caller's thread, because they share the
    generator of the process.
    """
    opened = iter(batches)
    transform = getattr(batches.dataset, "transform", None)
    crops = getattr(transform, "__self__", transform)
    if batches.num_workers or not isinstance(crops, Crops) or crops.draws:
        yield from opened
        return
    with ThreadPoolExecutor(1, "next batch") as thread:
        following = thread.submit(next, opened, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, opened, None)
            yield batch


def loader_processes(
    asked: int | Literal["auto"], modality: str, on_gpu: bool, trainings: int = 1, decodes: bool = True
) -> int:
    """The number of loader processes of one training.

    `auto` takes this training's share of the cores minus one, at most 8 if nothing is decoded. It takes none for texts
    or on a CPU, where the model needs all cores.

    Args:
        trainings: number of processes of this node that train together, each with its own loaders.
        decodes: whether images are decoded, not read from their cache.
    """
    if asked != "auto":
        return asked
    if modality == "text" or not on_gpu:
        return 0
    processes = cores_here(trainings) - 1
    return processes if decodes else min(processes, MOST_PROCESSES)


def embedded_together(asked: int | Literal["auto"], on_gpu: bool) -> int:
    """The number of samples in a batch for embedding."""
    return (ON_GPU if on_gpu else ON_CPU) if asked == "auto" else asked


def _image_batch(samples: list[tuple[Any, int, int]], as_bytes: bool) -> list[Tensor]:
    pixels, labels, index = zip(*samples, strict=True)
    batch = stacked(pixels) if as_bytes else stacked_floats(pixels)
    return [batch, torch.tensor(labels), torch.tensor(index)]
