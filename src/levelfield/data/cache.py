"""A prepared cache: images decoded and reduced once, in one memory-mapped file beside an index."""

import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import PIL
import torch
from jaxtyping import UInt8
from torch.utils.data import DataLoader, Dataset

from levelfield.data.crops import Picture
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.made_once import made_once
from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.runtime.processes import end_with_parent
from levelfield.storage.atomic import TEMPORARY, replaced
from levelfield.storage.lock import Lock

INDEX = "index.npz"
# A file of this size is made without being asked for.
MOST_BYTES = 4 << 30
# Images that are opened to say how much room all of them take.
LOOKED_AT = 16
# Fewer images are decoded before loader processes are there.
FEW = 500


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
        self._bytes = np.memmap(pixels, dtype=np.uint8, mode="c")

    def load(self, key: str) -> UInt8[np.ndarray, "height width 3"]:
        """One image, reduced: a view of the file, which writes to it do not reach."""
        start, height, width = self._places[key]
        return np.asarray(self._bytes[start : start + height * width * 3]).reshape(height, width, 3)

    def __getstate__(self) -> dict[str, Any]:
        return {"pixels": self.pixels, "places": self._places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def prepare_images(
    dataset: MetricDataset, index: SampleIndex, read: Callable[[str], Picture], purpose: Mapping[str, Any]
) -> PreparedImages:
    """The images of `index` from their cache, which is made or renewed first where it has to be.

    The cache lies in a folder of its own below `LEVELFIELD_CACHE` (by default `~/.cache/levelfield`). It is renewed
    when the samples, or the bytes of a file, are not what it was made from. One process makes
    it, with loader processes on the cores that it has, while others wait; what is there is always whole, whenever a
    process is killed.

    Args:
        dataset: says where the images lie, those of `index` and no others.
        read: opens the image of a key and reduces it, the same each time.
        purpose: plain values that set this cache apart from others of the same data set: the half, and what `read`
            does.

    Raises:
        UserError: an image that cannot be opened, a data set without files, or no room to write.
    """
    if dataset.modality == "text":
        raise UserError(f"--data.cache is for images, and {dataset.name} holds texts: leave it out")
    if not _has_files(dataset, index):
        raise UserError(f"--data.cache is for image files on this machine, and {dataset.name} has none: leave it out")
    return _prepared(_folder(dataset, purpose), stamp_of(dataset, index), dataset, index, read)


def _prepared(
    folder: Path, stamp: str, dataset: MetricDataset, index: SampleIndex, read: Callable[[str], Picture]
) -> PreparedImages:
    return made_once(
        Lock(folder, "cache", f"cache of {dataset.name}"),
        lambda: _read(folder, stamp),
        lambda: _make(folder, stamp, index, read),
        f"prepared cache {folder}",
        "--data.cache",
    )


def prepared_where_it_pays(
    dataset: MetricDataset, index: SampleIndex, read: Callable[[str], Picture], purpose: Mapping[str, Any]
) -> PreparedImages | None:
    """`prepare_images` where its file is there, or takes no more room than nobody has to be asked for; else None.

    That is `MOST_BYTES`, and half of what is free where it goes. It takes image files, too, and a folder to write to.
    """
    if dataset.modality == "text" or not _has_files(dataset, index):
        return None
    folder = _folder(dataset, purpose)
    is_new = not os.path.exists(folder / INDEX)
    if is_new and not _fits(folder, index, read):  # before millions of files are hashed for the stamp
        return None
    stamp = stamp_of(dataset, index)
    try:
        found = _read(folder, stamp)
    except OSError:
        return None
    if found is None and not is_new and not _fits(folder, index, read):
        return None
    return found or _prepared(folder, stamp, dataset, index, read)


def _has_files(dataset: MetricDataset, index: SampleIndex) -> bool:
    return all(dataset.file_of(key) is not None for key in index.keys[:1])


def _folder(dataset: MetricDataset, purpose: Mapping[str, Any]) -> Path:
    return cache_root() / f"{dataset.name}-{_digest(place_of(dataset), dict(purpose))[:16]}"


def _fits(folder: Path, index: SampleIndex, read: Callable[[str], Picture]) -> bool:
    """Whether there can be a folder with room for the images, and for no more than nobody has to be asked for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        most = min(MOST_BYTES, shutil.disk_usage(folder).free // 2)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and _room(index, read) <= most


def _room(index: SampleIndex, read: Callable[[str], Picture]) -> int:
    """About the bytes that the images take, by some of them."""
    some = index.keys[:: max(1, len(index.keys) // LOOKED_AT)]
    return len(index.keys) * sum(np.asarray(read(key)).size for key in some) // max(1, len(some))


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
    """What the samples of `index` depend on: their content, and the versions of what decodes images."""
    return dataset.once(("stamp", index.keys), lambda: _stamp(dataset, index))


def _stamp(dataset: MetricDataset, index: SampleIndex) -> str:
    digest = hashlib.sha256()
    for key, content in zip(index.keys, dataset.contents_of(index.keys), strict=True):
        digest.update(f"{key}\t{content}\n".encode())
    if dataset.modality == "image":
        import torchvision  # takes as long as torch, which `levelfield data list` needs neither of

        digest.update(f"{PIL.__version__} {torchvision.__version__}".encode())
    return digest.hexdigest()


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


def _make(folder: Path, stamp: str, index: SampleIndex, read: Callable[[str], Picture]) -> None:
    """Write the pixels, then the index that names them, and only then remove what was there before."""
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
    """The images of an index; many are opened by as many processes as there are cores."""
    if len(index.keys) < FEW:
        yield from (np.asarray(read(key)) for key in index.keys)
        return
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loader = DataLoader(
        _Opened(index, read),
        batch_size=None,
        num_workers=processes,
        worker_init_fn=partial(end_with_parent, os.getpid()),
        collate_fn=_as_it_is,
    )
    with torch.random.fork_rng(devices=[]):  # of what a loader draws: later draws do not know of a cache
        for image in loader:
            if isinstance(image, str):
                raise UserError(image)
            yield image


@dataclass(frozen=True)
class _Opened(Dataset[Any]):
    """The images of an index, or what is wrong with one: a loader process would add a traceback to that."""

    index: SampleIndex
    read: Callable[[str], Picture]

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, position: int) -> np.ndarray | str:
        try:
            return np.asarray(self.read(self.index.keys[position]))
        except UserError as error:
            return str(error)


def _as_it_is(image: Any) -> Any:
    return image
