"""The feature file: computed in parts by all processes that need it, complete or absent."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.errors import UserError
from levelfield.core.files import CheckedFile, Lock, is_whole, replaced_checked
from levelfield.data.cache import cache_root, place_of, stamp_of
from levelfield.data.content_hashes import file_state
from levelfield.data.dataset import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.made_once import made_once, written

# Samples of a part, and the largest number of parts.
PART_SAMPLES, MOST_PARTS = 2048, 64
LOOK_SECONDS = 0.2
OPTION = "--data.features"

# Yields the features of the samples between two positions, batch by batch.
Batches = Callable[[int, int], Iterator[Float[np.ndarray, "batch features"]]]


@dataclass(frozen=True)
class Part:
    """A range of samples, in complete batches.

    Args:
        file: has their features until all parts are complete.
    """

    file: Path
    start: int
    stop: int

    def read(self) -> Float[np.ndarray, "samples features"] | None:
        """The features; None if they are missing or damaged."""
        array = _loaded(self.file)
        return array if array is not None and array.ndim == 2 and len(array) == self.stop - self.start else None


def prepare_features(
    dataset: MetricDataset,
    index: SampleIndex,
    purpose: Mapping[str, Any],
    batch_size: int,
    batches: Batches,
) -> Float[Tensor, "samples features"]:
    """The features of the samples of `index` from their file, which is first computed if it is missing.

    The file is in `features/` below `LEVELFIELD_CACHE`. Its name is a hash of everything that the features depend on,
    so other samples, weights or transforms have another file. It is complete or absent, even if a process is killed.
    All processes that need it compute parts of it. Later processes use the finished parts. A file or part with a wrong
    checksum is computed again.

    Args:
        index: the samples, in the order of the features.
        purpose: everything that the features depend on, except the samples, as plain values.
        batch_size: size of `batches`. A part has complete batches, because the batch affects the rounding of features.
        batches: computes features.

    Raises:
        UserError: a sample that cannot be opened, or no space.
    """
    folder = cache_root() / "features"
    stamp = stamp_of(dataset, index)
    described = json.dumps([place_of(dataset), stamp, purpose], sort_keys=True)
    name = f"{dataset.name}-{sha256(described.encode()).hexdigest()[:32]}"
    file = folder / f"{name}.npy"
    samples = len(index.keys)
    if (found := _mapped(file, samples)) is not None:
        return found
    parts = _parts(file, samples, batch_size)
    what = f"features {file}"
    with written(what, OPTION):
        _compute(parts, file, samples, batches, title := f"features of {dataset.name}")
    try:
        return made_once(
            Lock(folder, name, title), lambda: _mapped(file, samples), lambda: _join(parts, file, samples), what, OPTION
        )
    finally:
        if file.is_file():
            for part in parts:
                part.file.unlink(missing_ok=True)


def _parts(file: Path, samples: int, batch_size: int) -> list[Part]:
    step = -(-max(PART_SAMPLES, -(-samples // MOST_PARTS)) // batch_size) * batch_size
    return [
        Part(file.with_name(f".{file.stem}-{start}.npy"), start, min(start + step, samples))
        for start in range(0, samples, step)
    ]


def _compute(parts: list[Part], file: Path, samples: int, batches: Batches, title: str) -> None:
    """Compute missing parts, together with other processes, until all parts are complete or joined."""
    locks = {part: Lock(file.parent, part.file.stem.lstrip("."), title) for part in parts}
    told = False
    while (missing := [part for part in parts if part.read() is None]) and _mapped(file, samples) is None:
        has_computed = False
        for part in missing:
            if not locks[part].acquire():
                continue
            try:
                if part.read() is None and _mapped(file, samples) is None:
                    if part is missing[0] and not told:
                        told = True
                        to_do = sum(each.stop - each.start for each in missing)
                        print(f"computing the features of {to_do:,} samples once, into {file}", file=sys.stderr)
                    _compute_part(part, batches)
                    has_computed = True
            finally:
                locks[part].release()
        if not has_computed:
            time.sleep(LOOK_SECONDS)


def _compute_part(part: Part, batches: Batches) -> None:
    # A loader must not use the process's generator, or later draws would depend on whether the file existed.
    with torch.random.fork_rng(devices=[]), replaced_checked(part.file) as opened:
        begun = False
        for batch in batches(part.start, part.stop):
            if not begun:
                _write_header(opened, (part.stop - part.start, batch.shape[1]))
                begun = True
            opened.write(np.ascontiguousarray(batch, dtype="<f4").tobytes())


def _join(parts: list[Part], file: Path, samples: int) -> None:
    with replaced_checked(file) as opened:
        for i, part in enumerate(parts):
            features = part.read()
            assert features is not None  # a process that removes parts has the lock and writes the file
            if i == 0:
                _write_header(opened, (samples, features.shape[1]))
            opened.write(np.ascontiguousarray(features).tobytes())


def _write_header(opened: CheckedFile, shape: tuple[int, int]) -> None:
    np.lib.format.write_array_header_1_0(opened, {"descr": "<f4", "fortran_order": False, "shape": shape})


def _mapped(file: Path, samples: int) -> Tensor | None:
    """The content of the file; None if it is missing or damaged."""
    array = _loaded(file)
    return torch.from_numpy(array) if array is not None and array.ndim == 2 and len(array) == samples else None


def _loaded(file: Path) -> np.ndarray | None:
    try:
        if not _is_whole(file, file_state(file)):
            return None
        # Copy on write, because torch takes no read-only array; nothing is written.
        return np.load(file, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, UserError, ValueError, EOFError):  # missing or damaged
        return None


@lru_cache(maxsize=256)
def _is_whole(file: Path, state: int) -> bool:
    """`is_whole`, cached for each state of the file."""
    return is_whole(file)
