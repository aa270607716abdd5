"""Loaders of a subset's samples: who stacks them into batches, and how many processes open them."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from levelfield.data.crops import Crops, stacked, stacked_floats
from levelfield.data.features import FeatureSubset, whole_batch
from levelfield.data.subset import ClassSubset
from levelfield.runtime.processes import cores_here, end_with_parent

# A GPU is fed by as many from a prepared cache; more only take memory.
MOST_PROCESSES = 8
# Where Linux keeps shared memory, and what so many processes fill with batches of any usual size.
SHARED, LEAST_SHARED = Path("/dev/shm"), 1 << 30


def loader(
    subset: ClassSubset,
    processes: int,
    on_gpu: bool,
    persistent: bool = False,
    kind: Callable[..., DataLoader] = DataLoader,
    **how: Any,
) -> DataLoader:
    """Batches of a subset: a list of samples, labels and index, or `FeatureSubset`'s dictionaries.

    Images are stacked as bytes, and are floats in [0, 1] in the memory format channels_last when they leave the loader;
    for a GPU they stay bytes, a quarter of what is copied, and become floats there (`crops.as_floats`).

    Args:
        processes: loader processes; features need none.
        persistent: whether they stay for another pass.
        kind: makes the loader.
        how: further arguments of the `DataLoader`.
    """
    if isinstance(subset, FeatureSubset):
        return kind(subset, collate_fn=whole_batch, pin_memory=on_gpu, **how)
    collate: Any = default_collate
    transform = subset.transform
    if isinstance(transform, Crops):
        transform, collate = transform.pixels, partial(_image_batch, as_bytes=on_gpu)
    subset = ClassSubset(subset.dataset, subset.index, transform, subset.seed)  # a cache is made here, in this process
    return kind(subset, collate_fn=collate, **in_processes(processes, on_gpu, persistent), **how)


def in_processes(processes: int, on_gpu: bool, persistent: bool = False) -> dict[str, Any]:
    """How samples reach this process, by loader processes that end with it."""
    return {
        "num_workers": processes,
        "persistent_workers": persistent and processes > 0,
        "worker_init_fn": partial(end_with_parent, os.getpid()) if processes else None,
        "pin_memory": on_gpu,
    }


def opened_ahead(batches: DataLoader) -> Iterator[Any]:
    """The batches of a loader; where it has no processes, a thread opens the next of pictures while one is in use.

    Pillow decodes and resizes without Python's lock. The thread ends with the last batch, or with whoever takes no
    more; what cannot be opened is raised where its batch is asked for. Crops that draw stay in the caller's thread:
    they draw from the process's generator, as others may meanwhile.
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


def loader_processes(asked: int | Literal["auto"], modality: str, on_gpu: bool, trainings: int = 1) -> int:
    """How many processes open the samples of one training.

    `auto` leaves a core of this training's share of the machine to the training itself, and takes none for texts, which
    need no opening, nor on a CPU, all of whose time the model takes, nor where shared memory, by which batches come, is
    small (64 MB in a container that nobody gave more: a full one kills the process).

    Args:
        trainings: processes that train together, with loaders of their own.
    """
    if asked != "auto":
        return asked
    if modality == "text" or not on_gpu or (SHARED.is_dir() and shutil.disk_usage(SHARED).free < LEAST_SHARED):
        return 0
    return max(0, min(MOST_PROCESSES, cores_here() // trainings - 1))


def _image_batch(samples: list[tuple[Any, int, int]], as_bytes: bool) -> list[Tensor]:
    pixels, labels, index = zip(*samples, strict=True)
    batch = stacked(pixels) if as_bytes else stacked_floats(pixels)
    return [batch, torch.tensor(labels), torch.tensor(index)]
