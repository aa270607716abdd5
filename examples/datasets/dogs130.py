"""Tsinghua Dogs: photographs of 130 breeds, most of them taken in everyday life.

Put `low-resolution/` from https://cloud.tsinghua.edu.cn/f/80013ef29c5f42728fc8/?dl=1 into `DIR/dogs130/`.
Then, in the folder of the repository:

levelfield fit --config data/cub200 --data.dataset examples.datasets.dogs130.TsinghuaDogs130 --data.root DIR \
    --model.loss ContrastiveLoss
"""

from pathlib import Path

from levelfield.data import ImageFolder
from levelfield.data.dataset import NamedDataset, SampleIndex


class TsinghuaDogs130(NamedDataset):
    """Zou, Zhang, Mu and Zhang, "A new dataset of dog breed images", Computational Visual Media 6, 2020.

    All 70,432 images of the low-resolution archive, as in Vasilev and D'yakonov; the publishers' lists name 70,428 of
    them. Classes are in the order of their folders, `<number of images>-n<number>-<breed>`. The lists have every breed
    in both parts and are not used.

    Args:
        root: holds `dogs130/low-resolution/` with one folder per breed; None takes the environment's LEVELFIELD_DATA.
    """

    name = "dogs130"
    licence = "academic use"
    source = "https://cg.cs.tsinghua.edu.cn/ThuDogs/"
    num_classes_published = 130
    num_samples_published = 70432

    def read_index(self) -> SampleIndex:
        return ImageFolder(self.files_folder()).read_index()

    def files_folder(self) -> Path:
        return self.named_folder() / "low-resolution"
