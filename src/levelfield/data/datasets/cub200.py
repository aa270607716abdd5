"""CUB-200-2011: photographs of 200 species of birds."""

from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.lists import check_listed_once, read_columns
from levelfield.data.index import SampleIndex, index_of_classes


class CUB200(NamedDataset):
    """Wah, Branson, Welinder, Perona and Belongie, "The Caltech-UCSD Birds-200-2011 Dataset", 2011.

    Classes are in the order of `classes.txt`. The official split in `train_test_split.txt` has every species in both
    parts and is not used.
    Tested with: a small replica.

    Args:
        root: holds `cub200/CUB_200_2011/` with `images.txt`, `image_class_labels.txt`, `classes.txt` and `images/`,
            as in the official archive; None takes the environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, a list that is missing or malformed, or does not fit the others.
    """

    name = "cub200"
    inner_folder = "CUB_200_2011"
    licence = "non-commercial research and education"
    source = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    num_classes_published = 200
    num_samples_published = 11788
    splits = "half, vasilev-dyakonov"
    archives = (
        Archive(
            "CUB_200_2011.tgz",
            gives="CUB_200_2011",
            url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            size=1150585339,
            sha256="0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
    )

    def read_index(self) -> SampleIndex:
        remedy = self.remedy
        images_file, labels_file, classes_file = (
            self.named_folder() / name for name in ("images.txt", "image_class_labels.txt", "classes.txt")
        )
        images = read_columns(images_file, {"image_id": int, "path": str}, remedy)
        labels = read_columns(labels_file, {"image_id": int, "class_id": int}, remedy)
        classes = read_columns(classes_file, {"class_id": int, "name": str}, remedy)
        check_listed_once(images_file, [path for _, path in images], remedy)
        class_of = dict(labels)
        name_of = dict(sorted(classes))
        for image, _ in images:
            if image not in class_of:
                raise UserError(f"{labels_file} has no class for image {image} of {images_file}: {remedy}")
        for image, class_id in labels:
            if class_id not in name_of:
                raise UserError(f"{classes_file} does not name class {class_id} of image {image}: {remedy}")
        return index_of_classes(((path, class_of[image]) for image, path in images), name_of)

    def file_of(self, key: str) -> Path:
        return self.named_folder() / "images" / key
