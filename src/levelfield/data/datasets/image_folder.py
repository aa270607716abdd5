"""Your own images, in one folder per class."""

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset
from levelfield.data.images import image_suffixes, open_image
from levelfield.data.index import SampleIndex
from levelfield.data.places import own_file

# Files of macOS, Windows, network storage and notebooks.
LEFT_BEHIND = frozenset(
    {"__macosx", "$recycle.bin", "system volume information", "desktop.ini", "thumbs.db", "ehthumbs.db"}
    | {"@eadir", "#recycle", "lost+found", "__pycache__"}
)
HALVES = frozenset({"train", "val", "valid", "validation", "test"})


class ImageFolder(MetricDataset):
    """Images in one folder per class, in the order of folder names.

    Folders inside a class folder belong to it. All files with a suffix that Pillow can open here are read. Everything
    else is ignored and counted in `left_out` of the index: other and hidden files, files of programs (`__MACOSX`),
    links to folders, images next to the class folders. A class folder without images is in no fold, but it
    counts for the boundary of the halves, so the halves depend only on the folders.

    Args:
        folder: the folder with the class folders.
        root: a missing folder is looked up below it, or below LEVELFIELD_DATA if it is None.

    Raises:
        UserError: from `read_index`, a missing folder, one without images, or one with the class folders deeper.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for bird in ("wren", "jay"):
        ...         Path(folder, bird).mkdir()
        ...         Image.new("RGB", (8, 8)).save(Path(folder, bird, "1.png"))
        ...     ImageFolder(folder).read_index().class_names
        ('jay', 'wren')
    """

    name = "image_folder"

    def __init__(self, folder: str | Path, root: str | Path | None = None) -> None:
        self.folder = folder
        self.root = root

    def read_index(self) -> SampleIndex:
        folder = own_file(self.folder, self.root)
        if not os.path.isdir(folder):
            raise UserError(f"no folder {folder}: give the folder with one folder per class")
        found = Found(folder)
        class_names = sorted(entry.name for entry in found.wanted(os.scandir(folder)) if found.is_class(entry))
        if not class_names:
            raise UserError(
                f"{folder} has no folders (links do not count): put the images of each class into its own folder"
            )
        keys, labels = [], []
        for label, class_name in enumerate(class_names):
            images = sorted(found.images(class_name))
            keys += images
            labels += [label] * len(images)
        if not keys:
            raise UserError(f"no images in the folders of {folder}; supported: {', '.join(sorted(image_suffixes()))}")
        only = len(class_names) == 1 or HALVES.issuperset(name.lower() for name in class_names)
        if only and any(key.count("/") > 1 for key in keys):
            raise UserError(
                f"{folder} has only {', '.join(class_names)}, with further folders: give one of them "
                f"({folder / class_names[0]}), or put the folders of all classes into one folder"
            )
        return SampleIndex(
            tuple(keys), np.array(labels, dtype=np.int64), tuple(class_names), left_out=tuple(found.left_out())
        )

    def index_files(self) -> list[Path]:
        folder = own_file(self.folder, self.root)
        return [folder, *(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())]

    def load(self, key: str) -> Image.Image:
        return open_image(self.file_of(key))

    def file_of(self, key: str) -> Path:
        return own_file(self.folder, self.root) / key


def _is_loop(link: os.DirEntry[str]) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


class Found:
    """The images in a folder, and counts of everything else by reason."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._left_out: Counter[str] = Counter()

    def left_out(self) -> list[str]:
        """A line for each reason."""
        return [f"{count:,} left out: {reason}" for reason, count in sorted(self._left_out.items())]

    def wanted(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        """The entries of a folder except hidden ones, files of programs, and links to folders."""
        for entry in entries:
            if entry.name.startswith("."):
                self._left_out["hidden (the name begins with a dot)"] += 1
            elif entry.name.lower() in LEFT_BEHIND:
                self._left_out[f"{entry.name}, a file of another program"] += 1
            elif re.search("[\ud800-\udfff\\n]", entry.name):
                self._left_out["a name that is not UTF-8 or has several lines; rename it"] += 1
            elif entry.is_symlink() and os.path.isdir(entry):
                self._left_out["a link to a folder; put the images there"] += 1
            elif entry.is_symlink() and _is_loop(entry):
                self._left_out["a link to itself; remove it"] += 1
            else:
                yield entry

    def is_class(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_dir():
            return True
        self._left_out["next to the class folders, in none of them"] += 1
        return False

    def images(self, below: str) -> Iterator[str]:
        """Keys of the images in a folder and its subfolders.

        Raises:
            UserError: a folder that cannot be read.
        """
        try:
            entries = list(os.scandir(self.folder / below))
        except OSError as error:
            raise UserError(
                f"cannot read {self.folder / below} ({error.strerror}): get the permission or move it away"
            ) from None
        for entry in self.wanted(iter(entries)):
            key = f"{below}/{entry.name}"
            if entry.is_dir():
                yield from self.images(key)
            elif self.is_image(entry):
                yield key

    def is_image(self, entry: os.DirEntry[str]) -> bool:
        suffix = Path(entry.name).suffix.lower()
        if suffix in image_suffixes():
            return True
        self._left_out[f"{suffix or 'no suffix'}, not an image that Pillow opens here"] += 1
        return False
