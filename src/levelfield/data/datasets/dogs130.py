"""Tsinghua Dogs: photographs of 130 breeds, most of them taken in everyday life."""

from pathlib import Path

from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.data.index import SampleIndex


class TsinghuaDogs130(NamedDataset):
    """Zou, Zhang, Mu and Zhang, "A new dataset of dog breed images", Computational Visual Media 6, 2020.

    All 70,432 images of the low-resolution archive, as in Vasilev and D'yakonov; the publishers' lists name 70,428 of
    them. Classes are in the order of their folders, `<number of images>-n<number>-<breed>`. The lists have every breed
    in both parts and are not used.
    Tested with: a small replica.

    Args:
        root: holds `dogs130/low-resolution/` with one folder per breed; None takes the environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, no such folder, or no folders in it.
    """

    name = "dogs130"
    licence = "academic use"
    source = "https://cg.cs.tsinghua.edu.cn/ThuDogs/"
    num_classes_published = 130
    num_samples_published = 70432
    splits = "half, vasilev-dyakonov"
    archives = (
        Archive(
            "low-resolution.zip",
            gives="low-resolution",
            url="https://cloud.tsinghua.edu.cn/f/80013ef29c5f42728fc8/?dl=1",
        ),
    )

    def read_index(self) -> SampleIndex:
        return self._images().read_index()

    def file_of(self, key: str) -> Path:
        return self._images().file_of(key)

    def _images(self) -> ImageFolder:
        return ImageFolder(self.named_folder() / "low-resolution")
