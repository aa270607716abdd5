"""CUB-200-2011: photographs of 200 species of birds."""

from pathlib import Path

from levelfield.data.dataset import NamedDataset, SampleIndex, index_of_classes


class CUB200(NamedDataset):
    """Wah, Branson, Welinder, Perona and Belongie, "The Caltech-UCSD Birds-200-2011 Dataset", 2011.

    Classes are in the order of `classes.txt`. The official split in `train_test_split.txt` has every species in both
    parts and is not used.
    Tested with: a small replica.

    Args:
        root: holds `cub200/CUB_200_2011/` with `images.txt`, `image_class_labels.txt`, `classes.txt` and `images/`,
            as in the official archive; None takes the environment's LEVELFIELD_DATA.
    """

    name = "cub200"

    def read_index(self) -> SampleIndex:
        with self.sound(self.named_folder()):
            lists = ("images.txt", "image_class_labels.txt", "classes.txt")
            images, labels, classes = (dict(line.split() for line in self.lines(name)) for name in lists)
            return index_of_classes(((path, labels[image]) for image, path in images.items()), classes)

    def files_folder(self) -> Path:
        return self.named_folder() / "images"
