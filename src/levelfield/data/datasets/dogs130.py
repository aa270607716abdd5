"""Tsinghua Dogs: photographs of 130 breeds, most of them taken in everyday life."""

from pathlib import Path, PurePosixPath

from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.base import NamedDataset, VerifyReport
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.data.datasets.lists import read_lines
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError

LISTS = ("train.lst", "validation.lst")


class TsinghuaDogs130(NamedDataset):
    """Zou, Zhang, Mu and Zhang, "A new dataset of dog breed images", Computational Visual Media 6, 2020.

    All 70,432 images of the low-resolution archive, as in Vasilev and D'yakonov; the publishers' lists name 70,428 of
    them. Classes are in the order of their folders, `<number of images>-n<number>-<breed>`. The lists have every breed
    in both parts, so they are not used as a split; `verify` checks them if they exist.
    Tested with: a small replica.

    Args:
        root: holds `dogs130/low-resolution/` with one folder per breed, and perhaps `dogs130/TrainAndValList/` with
            `train.lst` and `validation.lst`; None takes the environment's LEVELFIELD_DATA.

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
        Archive(
            "TrainValSplit.zip", gives="TrainAndValList", url="https://cg.cs.tsinghua.edu.cn/ThuDogs/TrainValSplit.zip"
        ),
    )

    def read_index(self) -> SampleIndex:
        return self._images().read_index()

    def file_of(self, key: str) -> Path:
        return self._images().file_of(key)

    def verify(self) -> VerifyReport:
        """The checks of every data set, and that all images in the publishers' lists exist."""
        report = super().verify()
        present = set(self.read_index().keys)
        for name in LISTS:
            file = self.named_folder() / "TrainAndValList" / name
            if not file.exists():
                continue
            try:
                lines = read_lines(file, self.remedy)
            except UserError as error:
                report.problems.append(str(error))
                continue
            for row, line in lines:
                key = str(PurePosixPath(line))  # a line begins with .//
                if key not in present:
                    report.problems.append(f"{file}, row {row}: no image {key} in low-resolution/: unpack that again")
        return report

    def _images(self) -> ImageFolder:
        return ImageFolder(self.named_folder() / "low-resolution")
