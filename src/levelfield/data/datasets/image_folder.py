"""Your own images, a folder a class."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from levelfield.data.datasets.base import MetricDataset, SampleIndex
from levelfield.data.datasets.images import image_suffixes, open_image
from levelfield.errors import UserError


class ImageFolder(MetricDataset):
    """Images in one folder a class, in order of the folders' names.

    Folders inside a class folder belong to it. A class folder without images still counts as a class, so that which
    class belongs to which fold depends on the folders alone. Hidden files, and files that are no images by their names,
    are passed over.

    Args:
        folder: holds the class folders.

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

    def __init__(self, folder: str | Path) -> None:
        self.folder = folder

    def read_index(self) -> SampleIndex:
        folder = Path(self.folder)
        if not folder.is_dir():
            raise UserError(f"no folder {folder}: give the folder that holds one folder a class")
        class_names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        if not class_names:
            raise UserError(f"{folder} holds no folders: put the images of each class into a folder of their own")
        keys, labels = [], []
        for label, class_name in enumerate(class_names):
            found = sorted(path.relative_to(folder).as_posix() for path in _image_files(folder / class_name))
            keys += found
            labels += [label] * len(found)
        if not keys:
            raise UserError(f"no images in the folders of {folder}: known are {', '.join(sorted(image_suffixes()))}")
        return SampleIndex(tuple(keys), np.array(labels, dtype=np.int64), tuple(class_names))

    def load(self, key: str) -> Image.Image:
        return open_image(self.file_of(key))

    def file_of(self, key: str) -> Path:
        return Path(self.folder) / key


def _image_files(class_folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(class_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(parent, name)
            for name in files
            if not name.startswith(".") and Path(name).suffix.lower() in image_suffixes()
        ]
    return found
