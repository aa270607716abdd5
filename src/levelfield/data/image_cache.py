"""Cache files, made once, complete or absent; the image cache: the images of a half, decoded and resized once."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL
import torch
from jaxtyping import Int
from PIL import Image

from levelfield.core.errors import FileRefused, UserError
from levelfield.core.files import locked, replaced
from levelfield.core.paths import cache_root
from levelfield.core.processes import cores_here, free_memory
from levelfield.core.source_identity import sources
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.own import dataset_spec
from levelfield.data.transforms import ImageTransforms

LOOKED_AT = 16  # images that are opened to estimate the size
SIZE = np.dtype("<i4")  # of a side, in pixels
Held = TypeVar("Held")


class CannotWrite(UserError):  # noqa: N818
    """A cache cannot be written."""


def digest(*values: Any) -> str:
    """SHA-256 of plain values, shortened for the name of a file."""
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def made_once(
    file: Path, read: Callable[[Path], Held], write: Callable[[], Iterable[bytes]], title: str, option: str
) -> Held:
    """The content of a file. If it is missing or damaged, one process writes it while others wait.

    Args:
        read: raises ValueError for a damaged file.
        write: yields the bytes of the file.
        title: what it is, for users of waiting processes.
        option: the option that needs it, for messages.

    Raises:
        CannotWrite: no space, or no permission.
    """
    found = _read(file, read)
    if found is None:
        try:
            with locked(file.parent, file.stem, title):
                if (found := _read(file, read)) is None:
                    # Loaders draw, and later draws must not depend on whether the file existed.
                    with torch.random.fork_rng(devices=[]), replaced(file) as opened:
                        for part in _without_os_errors(write()):
                            opened.write(part)
                    found = _read(file, read)
        except (OSError, FileRefused) as error:
            raise CannotWrite(
                f"cannot write the {title} into {file} ({error.strerror}): free space there, set the environment "
                f"variable LEVELFIELD_CACHE to another folder, or give {option} false"
            ) from None
    assert found is not None
    return found


def _read(file: Path, read: Callable[[Path], Held]) -> Held | None:
    try:
        return read(file)
    except (FileNotFoundError, NotADirectoryError, ValueError, EOFError):  # missing or damaged
        return None
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): get the permission, or delete it") from None


def _without_os_errors(parts: Iterable[bytes]) -> Iterator[bytes]:
    """`parts`; a sample that cannot be read is no error of writing."""
    try:
        yield from parts
    except OSError as error:
        raise UserError(f"cannot open a sample: {error}") from error


class CachedImages:
    """The resized images of an index: `images[position]` is that of a sample of the data set.

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

    def __getitem__(self, position: int) -> Image.Image:
        row = int(np.searchsorted(self.positions, position))
        return Image.fromarray(self._bytes[self._starts[row] : self._starts[row + 1]].reshape(*self._sizes[row], 3))

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedImages, (self.file, self.positions)  # each loader process opens the file itself


def cached_images(
    dataset: MetricDataset, index: SampleIndex, half: str, fingerprint: Callable[[], str], transforms: ImageTransforms
) -> CachedImages | None:
    """The images of `index` from their file below `LEVELFIELD_CACHE`, which is first written if it is missing.

    Other bytes of a sample, other code of the data set or of the decoders have a new file, which replaces this one;
    other settings have their own. One process writes it, on all its cores, while others wait.

    Args:
        index: the images; no other one is opened.
        half: names of the split and the half, which have their own file.
        fingerprint: returns that of the images.

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
    settings = [transforms.reduced, transforms.square, transforms.interpolation]
    name = f"{dataset.name}-{digest(spec, folder, half, settings)}"
    made_by = sources({"dataset": spec}), PIL.__version__, torchvision.__version__
    file = cache_root() / "images" / f"{name}-{digest(fingerprint(), *made_by)}.bin"
    positions = np.arange(len(index.keys)) if index.positions is None else index.positions

    def read(key: str) -> Image.Image:
        return transforms.reduce()(dataset.load(key))  # type: ignore[arg-type] # it has images

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


def _check_room(folder: Path, keys: Sequence[str], read: Callable[[str], Image.Image]) -> None:
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


def _pixels(keys: Sequence[str], read: Callable[[str], Image.Image]) -> Iterator[bytes]:
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
