"""The image cache: images decoded and resized once, in one memory-mapped file with an index."""

import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import PIL
import torch
from jaxtyping import UInt8
from torch.utils.data import DataLoader, Dataset

from levelfield.core.errors import UserError
from levelfield.core.files import TEMPORARY, Lock, replaced
from levelfield.core.paths import cache_root
from levelfield.core.processes import cores_here, free_memory, in_processes
from levelfield.core.source_identity import sources
from levelfield.core.versions import source_hash
from levelfield.data.crops import Picture
from levelfield.data.dataset import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.made_once import CannotWrite, made_once
from levelfield.data.own import class_and_arguments

INDEX = "index.npz"
# Number of images that are opened to estimate the size.
LOOKED_AT = 16
CROPS = "levelfield.data.crops"
# Decoding fewer images is faster than starting loader processes.
FEW = 500


class PreparedImages:
    """The resized images of an index, read from a memory-mapped file instead of decoded.

    `prepare_images` builds it. Each loader process opens the file itself.

    Args:
        pixels: the file with the (height, width, 3) bytes of all images in a row.
        places: key to the image's first byte, height and width.
    """

    def __init__(self, pixels: Path, places: dict[str, tuple[int, int, int]]) -> None:
        self.pixels = pixels
        self._places = places
        self._bytes = np.memmap(pixels, dtype=np.uint8, mode="c")

    def load(self, key: str) -> UInt8[np.ndarray, "height width 3"]:
        """One resized image: a copy-on-write view of the file."""
        start, height, width = self._places[key]
        return np.asarray(self._bytes[start : start + height * width * 3]).reshape(height, width, 3)

    def __getstate__(self) -> dict[str, Any]:
        return {"pixels": self.pixels, "places": self._places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def prepared_images(
    dataset: MetricDataset,
    index: SampleIndex,
    read: Callable[[str], Picture],
    purpose: Mapping[str, Any],
    where_it_pays: bool = False,
) -> PreparedImages | None:
    """The images of `index` from their cache, which is first written if it is missing or out of date.

    The cache is in its own folder below `LEVELFIELD_CACHE` (by default `~/.cache/levelfield`). It is written again if
    the samples, the bytes of a file or the code of the data set have changed. One process writes it, with loader
    processes on its cores, while others wait. The cache is always complete, even if a process is killed.

    Args:
        dataset: the data set of the image files; only those of `index` are opened.
        read: opens and resizes the image of a key, always in the same way.
        purpose: plain values that distinguish caches of one data set: the half, and the settings of `read`.
        where_it_pays: None instead of an error without files or space, and for images of more than half of the free
            disk or memory.

    Raises:
        UserError: an image that cannot be opened, a data set without files, or no space.
    """
    if dataset.modality == "text" or not _has_files(dataset, index):
        if where_it_pays:
            return None
        raise UserError(f"--data.cache is for image files, but {dataset.name} has none: leave it out")
    folder = cache_root() / f"{dataset.name}-{_digest(place_of(dataset), dict(purpose))[:16]}"
    is_new = not os.path.exists(folder / INDEX)
    if where_it_pays and is_new and _leaves_out(folder, index, read):  # before hashing millions of files for the stamp
        return None
    stamp = stamp_of(dataset, index)
    with suppress(OSError):
        if (found := _read(folder, stamp)) is not None:
            return found
    if where_it_pays and not is_new and _leaves_out(folder, index, read):
        return None
    try:
        return made_once(
            Lock(folder, "cache", f"cache of {dataset.name}"),
            lambda: _read(folder, stamp),
            lambda: _make(folder, stamp, index, read),
            f"prepared cache {folder}",
            "--data.cache",
        )
    except CannotWrite:
        if where_it_pays:
            return None
        raise


def _has_files(dataset: MetricDataset, index: SampleIndex) -> bool:
    return all(dataset.file_of(key) is not None for key in index.keys[:1])


def _leaves_out(folder: Path, index: SampleIndex, read: Callable[[str], Picture]) -> bool:
    """Whether `auto` writes no cache: the folder is not writable, or the images are too large. Says so in one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = {"disk": shutil.disk_usage(folder).free, "memory": free_memory()}
    except OSError:
        return True
    if not os.access(folder, os.W_OK):
        return True
    kind, room = min(free, key=lambda each: free[each]), _room(index, read)
    if is_left_out := room > free[kind] // 2:
        _note(
            f"no image cache: resized, the images take {room / 1e9:.1f} GB, over half of the free {kind} "
            f"({free[kind] / 1e9:.1f} GB), so each epoch decodes them; --data.cache true stores them all the same, in "
            f"LEVELFIELD_CACHE ({cache_root()})"
        )
    return is_left_out


@cache
def _note(line: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one of several processes
        print(line, file=sys.stderr)


def _room(index: SampleIndex, read: Callable[[str], Picture]) -> int:
    """Estimate of the images' size in bytes, from `LOOKED_AT` of them."""
    some = index.keys[:: max(1, len(index.keys) // LOOKED_AT)]
    return len(index.keys) * sum(np.asarray(read(key)).size for key in some) // max(1, len(some))


def place_of(dataset: MetricDataset) -> dict[str, Any]:
    """The class and arguments of the data set, which do not depend on its images."""
    spec = class_and_arguments(dataset)
    root = {"root": str(getattr(dataset, "root", None) or os.environ.get("LEVELFIELD_DATA"))}
    return {"class": spec["class_path"]} | {
        name: os.path.abspath(value) if isinstance(value, str) and os.path.exists(value) else value
        for name, value in (spec["init_args"] | root).items()
    }


def stamp_of(dataset: MetricDataset, index: SampleIndex) -> str:
    """A hash of everything that determines the samples: contents, the data set's code, versions of the decoders."""
    return dataset.once(("stamp", index.keys), lambda: _stamp(dataset, index))


def _stamp(dataset: MetricDataset, index: SampleIndex) -> str:
    code = sources(place_of(dataset))  # also of objects that it was given
    digest = hashlib.sha256(_digest(code, source_hash(CROPS)).encode())
    for key, content in zip(index.keys, dataset.contents_of(index.keys), strict=True):
        digest.update(f"{key}\t{content}\n".encode())
    if dataset.modality == "image":
        import torchvision  # slow to import

        digest.update(f"{PIL.__version__} {torchvision.__version__}".encode())
    return digest.hexdigest()


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _read(folder: Path, stamp: str) -> PreparedImages | None:
    """The cache in `folder`; None if it is missing or has other images."""
    try:
        with np.load(io.BytesIO((folder / INDEX).read_bytes())) as index:
            if str(index["stamp"]) != stamp:
                return None
            starts, sizes = index["starts"].tolist(), index["sizes"].tolist()
            pixels = folder / str(index["pixels"])
            if pixels.stat().st_size != index["bytes"]:
                return None
            keys = index["keys"].tolist()
    except (FileNotFoundError, BadZipFile, EOFError, ValueError, KeyError):  # missing or damaged
        return None
    return PreparedImages(pixels, {key: (start, *size) for key, start, size in zip(keys, starts, sizes, strict=True)})


def _make(folder: Path, stamp: str, index: SampleIndex, read: Callable[[str], Picture]) -> None:
    """Write the pixels, then the index that names them, then remove the old cache."""
    print(f"decoding {len(index.keys):,} images once, into {folder}", file=sys.stderr)
    pixels = folder / f"pixels-{stamp[:16]}.bin"
    starts, sizes, written = [], [], 0
    with replaced(pixels) as file:
        for array in _in_order(index, read):
            file.write(array.tobytes())
            starts.append(written)
            sizes.append(array.shape[:2])
            written += array.size
    with replaced(folder / INDEX) as file:
        np.savez(
            file,
            stamp=stamp,
            pixels=pixels.name,
            bytes=written,
            keys=np.array(list(index.keys)),
            starts=np.array(starts),
            sizes=np.array(sizes),
        )
    print(f"{folder} takes {written / 1e6:,.0f} MB", file=sys.stderr)
    for left in folder.iterdir():
        if left.suffix == TEMPORARY or (left.suffix == pixels.suffix and left != pixels):
            left.unlink()


def _in_order(index: SampleIndex, read: Callable[[str], Picture]) -> Iterator[np.ndarray]:
    """The images of an index in order; for many images, one process per core decodes them."""
    processes = in_processes(cores_here() if len(index.keys) >= FEW else 0)
    loader = DataLoader(_Opened(index, read), batch_size=None, collate_fn=_as_it_is, **processes)
    with torch.random.fork_rng(devices=[]):  # a loader draws numbers, and later draws must not depend on the cache
        for image in loader:
            if isinstance(image, str):
                raise UserError(image)
            yield image


@dataclass(frozen=True)
class _Opened(Dataset[Any]):
    """The images of an index. For a broken image it returns the message; an exception would add a traceback."""

    index: SampleIndex
    read: Callable[[str], Picture]

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, position: int) -> np.ndarray | str:
        try:
            return np.asarray(self.read(self.index.keys[position]))
        except UserError as error:
            return str(error)
        except OSError as error:  # not one of writing the cache
            return f"cannot open {self.index.keys[position]}: {error}"


def _as_it_is(image: Any) -> Any:
    return image
