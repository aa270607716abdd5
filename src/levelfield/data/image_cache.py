"""The image cache: the images of a half decoded and resized once, in one memory-mapped file."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from jaxtyping import Int, UInt8

from levelfield.core.paths import cache_root
from levelfield.core.processes import cores_here, free_memory
from levelfield.core.source_identity import sources
from levelfield.data.caches import CannotWrite, digest, made_once
from levelfield.data.dataset import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.data.own import dataset_spec
from levelfield.data.transforms import ImageTransforms, Picture, load

LOOKED_AT = 16  # images that are opened to estimate the size
SIZE = np.dtype("<i4")  # of a side, in pixels


class CachedImages:
    """The resized images of an index: `images[position]` is a copy-on-write view, (height, width, 3) bytes.

    The file has the bytes of all images in a row, then height and width of each.

    Args:
        positions: the position in the data set of each image, ascending.

    Raises:
        ValueError: the file does not hold that many images.
    """

    def __init__(self, file: Path, positions: Int[np.ndarray, " images"]) -> None:
        self.file, self.positions = file, positions
        self._bytes = np.memmap(file, np.uint8, "c").view(np.ndarray)
        sizes = self._bytes[len(self._bytes) - 2 * SIZE.itemsize * len(positions) :]
        self._sizes = np.frombuffer(sizes.tobytes(), SIZE).reshape(len(positions), 2)
        self._starts = np.concatenate([[0], np.cumsum(3 * self._sizes.prod(axis=1, dtype=np.int64))])
        if self._starts[-1] + sizes.size != len(self._bytes):
            raise ValueError(f"{file} is damaged")

    def __getitem__(self, position: int) -> UInt8[np.ndarray, "height width 3"]:
        row = int(np.searchsorted(self.positions, position))
        return self._bytes[self._starts[row] : self._starts[row + 1]].reshape(*self._sizes[row], 3)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedImages, (self.file, self.positions)  # each loader process opens the file itself


def cached_images(
    dataset: MetricDataset, index: SampleIndex, half: str, content: Callable[[], str], transforms: ImageTransforms
) -> CachedImages | None:
    """The images of `index` from their file below `LEVELFIELD_CACHE`, which is first written if it is missing.

    Other bytes of a sample, other code of the data set or of the decoders have a new file, which replaces this one;
    other settings have their own. One process writes it, on all its cores, while others wait.

    Args:
        index: the images; no other one is opened.
        half: names of the split and the half, which have their own file.
        content: returns a digest of the images' bytes.

    Returns:
        None for texts and drawn images; and, with a line for the user, for images of more than half of the free disk or
        memory, or a folder that cannot be written.

    Raises:
        UserError: an image that cannot be opened.
    """
    first = dataset.file_of(index.keys[0]) if len(index.keys) else None
    if dataset.modality == "text" or first is None:
        return None
    import torchvision  # slow to import

    spec, folder = dataset_spec(dataset), os.path.dirname(os.path.abspath(first))
    settings = [transforms.reduced, transforms.square, transforms.interpolation, transforms.draft]
    name = f"{dataset.name}-{digest(spec, folder, half, settings)}"
    made_by = sources({"dataset": spec}), PIL.__version__, torchvision.__version__
    file = cache_root() / "images" / f"{name}-{digest(content(), *made_by)}.bin"
    positions = np.arange(len(index.keys)) if index.positions is None else index.positions

    def read(key: str) -> Picture:
        return transforms.reduce()(load(dataset, key, transforms.reduced and transforms.evaluate()))

    def write() -> Iterator[bytes]:
        _check_room(file.parent, index.keys, read)
        for old in file.parent.glob(f"{name}-*"):
            old.unlink()
        print(f"decoding {len(index.keys):,} images once, into {file}", file=sys.stderr)
        yield from _pixels(index.keys, read)

    try:
        title = f"image cache of {dataset.name}"
        return made_once(file, lambda file: CachedImages(file, positions), write, title, "--data.cache")
    except CannotWrite as error:
        _note(f"no image cache, so each epoch decodes the images: {error}")
        return None


def _check_room(folder: Path, keys: Sequence[str], read: Callable[[str], Picture]) -> None:
    """Raise CannotWrite for images of more than half of the free disk or memory, which a file is read through."""
    some = keys[:: max(1, len(keys) // LOOKED_AT)]
    room = len(keys) * sum(np.asarray(read(key)).size for key in some) // len(some)
    free, kind = min((shutil.disk_usage(folder).free, "disk"), (free_memory(), "memory"))
    if room > free // 2:
        elsewhere = f", or LEVELFIELD_CACHE ({cache_root()}) on another disk" if kind == "disk" else ""
        raise CannotWrite(
            f"resized, they take {room / 1e9:.1f} GB, over half of the free {kind} ({free / 1e9:.1f} GB); give a "
            f"smaller --data.transforms.resize{elsewhere}"
        )


def _pixels(keys: Sequence[str], read: Callable[[str], Picture]) -> Iterator[bytes]:
    sizes, together = [], 4 * cores_here()
    with ThreadPoolExecutor(cores_here()) as threads:  # Pillow decodes and resizes without Python's global lock
        for first in range(0, len(keys), together):
            for image in threads.map(lambda key: np.asarray(read(key)), keys[first : first + together]):
                sizes.append(image.shape[:2])
                yield image.tobytes()
    yield np.array(sizes, SIZE).tobytes()
    print(f"it takes {3 * np.prod(sizes, axis=1).sum() / 1e6:,.0f} MB", file=sys.stderr)


@cache
def _note(line: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one of several processes
        print(line, file=sys.stderr)
