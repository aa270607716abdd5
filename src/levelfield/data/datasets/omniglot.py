"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings of each."""

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.content_hashes import sample_hash
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.images import decode_image, open_image
from levelfield.data.index import SampleIndex

PARTS = ("images_background", "images_evaluation")
LARGEST_DRAWING = 1 << 20  # a thousand times the usual size


class Omniglot(NamedDataset):
    """Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through probabilistic program induction", 2015.

    Classes are in the order background set (964), evaluation set (659), and within each by alphabet and character, so
    the training half is inside the background set. 105 x 105 pixels, black on white. The data set reads the official
    zip files or their folders. Coarse classes: the alphabets.
    Tested with: the real files.

    Args:
        root: holds `omniglot/` with `images_background` and `images_evaluation`, each a folder or a `.zip`; None takes
            the environment's LEVELFIELD_DATA.
    """

    name = "omniglot"
    licence = "MIT"
    source = "https://github.com/brendenlake/omniglot"
    num_classes_published = 1623
    num_samples_published = 32460
    archives = (
        Archive(
            "images_background.zip",
            url="https://github.com/brendenlake/omniglot/raw/master/python/images_background.zip",
            size=9464212,
            sha256="ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
        ),
        Archive(
            "images_evaluation.zip",
            url="https://github.com/brendenlake/omniglot/raw/master/python/images_evaluation.zip",
            size=6462886,
            sha256="1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
        ),
    )

    def __init__(self, root: str | Path | None = None) -> None:
        super().__init__(root)
        self._archives: dict[str, tuple[int, ZipFile]] = {}

    def read_index(self) -> SampleIndex:
        keys: list[str] = []
        labels: list[int] = []
        class_names: list[str] = []
        for part in PARTS:
            characters: dict[str, list[str]] = {}
            for file in self._files(part):
                characters.setdefault(file.rpartition("/")[0], []).append(file)
            for character in sorted(characters):
                drawings = sorted(name for name in characters[character] if name.endswith(".png"))
                keys += drawings
                labels += [len(class_names)] * len(drawings)
                class_names.append(character.partition("/")[2])
        alphabets = tuple(name.partition("/")[0] for name in class_names)
        return SampleIndex(tuple(keys), np.array(labels, dtype=np.int64), tuple(class_names), coarse_names=alphabets)

    def load(self, key: str) -> Image.Image:
        file = self.file_of(key)
        return open_image(file) if file.suffix != ".zip" else decode_image(self._read(key), f"{file}/{key}")

    def file_of(self, key: str) -> Path:
        folder, part = self.named_folder(), key.partition("/")[0]
        return folder / key if (folder / part).is_dir() else folder / f"{part}.zip"

    def content_of(self, key: str) -> str:
        file = self.file_of(key)
        return sample_hash(file) if file.suffix != ".zip" else hashlib.sha256(self._read(key)).hexdigest()

    def _read(self, key: str) -> bytes:
        """The bytes of a drawing in its zip file."""
        archive = self._archive(key.partition("/")[0])
        try:
            if archive.getinfo(key).file_size > LARGEST_DRAWING:
                raise BadZipFile("it is too large for a drawing")
            return archive.read(key)
        except (KeyError, BadZipFile, OSError, RuntimeError, zlib.error) as error:  # RuntimeError: unknown compression
            raise UserError(f"cannot read {key} in {archive.filename} ({error}): {self.remedy}") from None

    def _files(self, part: str) -> list[str]:
        """Paths below `omniglot/` of the drawings of a part, and of its character folders with a final slash."""
        folder = self.named_folder() / part
        if not folder.is_dir():
            names = self._archive(part).namelist()
            return [name for name in names if name.startswith(f"{part}/") and name.count("/") == 3]
        found = []
        for alphabet in os.scandir(folder):
            for character in os.scandir(alphabet) if alphabet.is_dir() else ():
                if character.is_dir():
                    below = f"{part}/{alphabet.name}/{character.name}/"
                    found += [below, *(below + name for name in os.listdir(character))]
        return found

    def _archive(self, part: str) -> ZipFile:
        """The open zip file of a part; each process opens its own, because a fork would share the file position."""
        opened_by, archive = self._archives.get(part, (None, None))
        if archive is None or opened_by != os.getpid():
            file = self.named_folder() / f"{part}.zip"
            try:
                archive = ZipFile(file)
            except FileNotFoundError:
                raise UserError(f"neither {file} nor a folder {file.stem} next to it exists: {self.remedy}") from None
            except (BadZipFile, OSError, NotImplementedError, UnicodeDecodeError) as error:
                raise UserError(f"{file} is not a complete zip file ({error}): {self.remedy}") from None
            self._archives[part] = (os.getpid(), archive)
        return archive

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archives": {}}
