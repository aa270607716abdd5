"""A prepared cache: images decoded and reduced once, in one memory-mapped file beside an index."""

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
import PIL
from PIL import Image

from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.errors import FileRefused, UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.storage.atomic import TEMPORARY, replaced
from levelfield.storage.lock import Lock

INDEX = "index.npz"
Made = TypeVar("Made")


class PreparedImages:
    """The images of an index as `reduce` leaves them, read from a memory-mapped file instead of decoded.

    Made by `prepare_images`. A loader process opens the file for itself.

    Args:
        pixels: the file: (height, width, 3) bytes of each image, one after the other.
        places: of each key, where its bytes begin, and its height and width.
    """

    def __init__(self, pixels: Path, places: dict[str, tuple[int, int, int]]) -> None:
        self.pixels = pixels
        self._places = places
        self._bytes = np.memmap(pixels, dtype=np.uint8, mode="r")

    def load(self, key: str) -> Image.Image:
        """One image, reduced."""
        start, height, width = self._places[key]
        return Image.fromarray(np.asarray(self._bytes[start : start + height * width * 3]).reshape(height, width, 3))

    def __getstate__(self) -> dict[str, Any]:
        return {"pixels": self.pixels, "places": self._places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def prepare_images(
    dataset: MetricDataset, index: SampleIndex, reduce: Callable[[Image.Image], Image.Image], purpose: Mapping[str, Any]
) -> PreparedImages:
    """The images of `index` from their cache, which is made or renewed first where it has to be.

    The cache lies in a folder of its own below `LEVELFIELD_CACHE` (by default `~/.cache/levelfield`). It is renewed
    when the samples, or the path, size or modification time of a file, are not what it was made from. One process makes
    it while others wait; what is there is always whole, whenever a process is killed.

    Args:
        dataset: opens the images, those of `index` and no others.
        reduce: what is done to each image first, the same each time.
        purpose: plain values that set this cache apart from others of the same data set: the half, and what `reduce`
            does.

    Raises:
        UserError: an image that cannot be opened, a data set without files, or no room to write.
    """
    if dataset.modality == "text":
        raise UserError(f"--data.cache is for images, and {dataset.name} holds texts: leave it out")
    folder = cache_root() / f"{dataset.name}-{_digest(place_of(dataset), dict(purpose))[:16]}"
    if any(dataset.file_of(key) is None for key in index.keys[:1]):
        raise UserError(f"--data.cache is for image files, and {dataset.name} draws its images: leave it out")
    stamp = stamp_of(dataset, index)
    return made_once(
        Lock(folder, "cache", f"cache of {dataset.name}"),
        lambda: _read(folder, stamp),
        lambda: _make(folder, stamp, dataset, index, reduce),
        f"prepared cache {folder}",
        "--data.cache",
    )


def made_once(lock: Lock, read: Callable[[], Made | None], make: Callable[[], None], what: str, option: str) -> Made:
    """What `read` finds. Where it finds nothing, one process calls `make` while the others wait for `lock`.

    Args:
        what: is made, and where, unless `option` is left out.

    Raises:
        UserError: no room to write.
    """
    try:
        with lock:
            found = read()
            if found is None:
                make()
                found = read()
    except (OSError, FileRefused) as error:  # the latter is the lock's
        raise UserError(
            f"cannot write the {what} ({error.strerror}): make room there, give another folder by the "
            f"environment variable LEVELFIELD_CACHE, or leave {option} out"
        ) from None
    assert found is not None
    return found


def place_of(dataset: MetricDataset) -> dict[str, Any]:
    """The data set's class and where it lies: what stays when its images change."""
    kind = type(dataset)
    arguments = {name: value for name, value in vars(dataset).items() if not name.startswith("_")}
    arguments["root"] = arguments.get("root") or os.environ.get("LEVELFIELD_DATA")
    return {"class": f"{kind.__module__}.{kind.__qualname__}"} | {
        name: os.path.abspath(value) if isinstance(value, str | Path) and os.path.exists(value) else value
        for name, value in arguments.items()
    }


def stamp_of(dataset: MetricDataset, index: SampleIndex) -> str:
    """What the samples of `index` depend on: texts themselves, or the files, and the versions of what decodes them."""
    if dataset.modality == "text":
        return _digest([(key, dataset.load(key)) for key in index.keys])
    import torchvision  # takes as long as torch, which `levelfield data list` needs neither of

    decoders = [PIL.__version__, torchvision.__version__]
    paths = _paths(_Placed(_digest(place_of(dataset)), dataset), index.keys)
    if paths is None:
        return _digest(index.keys, decoders)
    files = []
    for key, path in zip(index.keys, paths, strict=True):
        try:
            status = os.stat(path)
        except OSError:
            dataset.size_of(key)  # names the row where there is no such file
            raise
        files.append((key, path, status.st_size, status.st_mtime_ns))
    return _digest(files, decoders)


@dataclass(frozen=True)
class _Placed:
    """A data set that is another's equal if both lie in one place."""

    place: str
    dataset: MetricDataset = field(compare=False)


@lru_cache(maxsize=4)  # each job of a study asks, and has a data set of its own
def _paths(placed: _Placed, keys: tuple[str, ...]) -> list[str] | None:
    """The file of each sample; None where the program draws them."""
    files = [placed.dataset.file_of(key) for key in keys]
    return None if None in files else [os.path.abspath(str(file)) for file in files]


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _read(folder: Path, stamp: str) -> PreparedImages | None:
    """The cache in `folder`; None where there is none, or one of other images."""
    try:
        with np.load(io.BytesIO((folder / INDEX).read_bytes())) as index:
            if str(index["stamp"]) != stamp:
                return None
            starts, sizes = index["starts"].tolist(), index["sizes"].tolist()
            pixels = folder / str(index["pixels"])
            if pixels.stat().st_size != index["bytes"]:
                return None
            keys = index["keys"].tolist()
    except (FileNotFoundError, BadZipFile, EOFError, ValueError, KeyError):  # absent, or not what numpy writes
        return None
    return PreparedImages(pixels, {key: (start, *size) for key, start, size in zip(keys, starts, sizes, strict=True)})


def _make(
    folder: Path, stamp: str, dataset: MetricDataset, index: SampleIndex, reduce: Callable[[Image.Image], Image.Image]
) -> None:
    """Write the pixels, then the index that names them, and only then remove what was there before."""
    print(f"decoding {len(index.keys):,} images once, into {folder}", file=sys.stderr)
    pixels = folder / f"pixels-{stamp[:16]}.bin"
    starts, sizes, written = [], [], 0
    with replaced(pixels) as file:
        for key in index.keys:
            image = dataset.load(key)
            assert isinstance(image, Image.Image)
            array = np.asarray(reduce(image))
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
            keys=np.array(index.keys),
            starts=np.array(starts),
            sizes=np.array(sizes),
        )
    for left in folder.iterdir():
        if left.suffix == TEMPORARY or (left.suffix == pixels.suffix and left != pixels):
            left.unlink()
