"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings of each."""

from functools import lru_cache
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from levelfield.data.dataset import NamedDataset, SampleIndex, index_of_classes

PARTS = ("images_background", "images_evaluation")


class Omniglot(NamedDataset):
    """Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through probabilistic program induction", 2015.

    Classes are in the order background set (964), evaluation set (659), and within each by alphabet and character, so
    the training half is inside the background set. 105 x 105 pixels, black on white, read from the official zip files.
    Coarse classes: the alphabets.
    Tested with: the real files.

    Args:
        root: holds `omniglot/` with `images_background.zip` and `images_evaluation.zip`; None takes the environment's
            LEVELFIELD_DATA.
    """

    name = "omniglot"

    def read_index(self) -> SampleIndex:
        keys = [key for part in PARTS for key in sorted(self._part(part).namelist()) if key.endswith(".png")]
        character_of = {key: key.rpartition("/")[0] for key in keys}
        names = {character: character.partition("/")[2] for character in character_of.values()}
        alphabets = tuple(name.partition("/")[0] for name in names.values())
        return index_of_classes(character_of.items(), names, coarse_names=alphabets)

    def file_of(self, key: str) -> Path:
        return self.named_folder() / f"{key.partition('/')[0]}.zip"

    def inside(self, key: str) -> bytes:
        with self.sound(self.file_of(key)):
            return self._part(key).read(key)

    def _part(self, key: str) -> ZipFile:
        with self.sound(file := self.file_of(key)):
            return _archive(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=len(PARTS))
def _archive(file: Path, modified: int) -> ZipFile:
    """A zip file in memory (16 MB for both), for forked processes would share the position in an open file."""
    return ZipFile(BytesIO(file.read_bytes()))
