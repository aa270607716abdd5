"""Cars-196: photographs of 196 makes and models of cars."""

from pathlib import Path

import numpy as np

from levelfield.core.errors import UserError
from levelfield.data.dataset import NamedDataset
from levelfield.data.datasets.archives import Archive
from levelfield.data.index import SampleIndex

ALL_IMAGES = "cars_annos.mat"
TRAIN_IMAGES = "devkit/cars_train_annos.mat"
TEST_IMAGES = "cars_test_annos_withlabels.mat"
CLASS_NAMES = "devkit/cars_meta.mat"


class Cars196(NamedDataset):
    """Krause, Stark, Deng and Fei-Fei, "3D Object Representations for Fine-Grained Categorization", 2013.

    Classes are in the order of their official numbers. Both official layouts have the same 16,185 photographs:

    - `cars_annos.mat` and `car_ims/`;
    - `cars_train/`, `cars_test/`, `cars_test_annos_withlabels.mat` (here or in `devkit/`) and `devkit/`.

    The second is a closed-set split: each class is in both parts. The parts are merged and split by class. A single
    part is rejected, because a model would be tested on its training classes.
    Tested with: a small replica.

    Args:
        root: holds `cars196/` with one of the two official layouts; None takes the environment's LEVELFIELD_DATA.

    Raises:
        UserError: from `read_index`, files that are missing or malformed, or one part of the closed-set split.
    """

    name = "cars196"
    licence = "none stated"
    source = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html"
    num_classes_published = 196
    num_samples_published = 16185
    splits = "half, vasilev-dyakonov"
    archives = (
        Archive(
            "cars_train.tgz",
            gives="cars_train",
            url="https://ai.stanford.edu/~jkrause/car196/cars_train.tgz",
            size=979269282,
            sha256="512b227b30e2f0a8aab9e09485786ab4479582073a144998da74d64b801fd288",
        ),
        Archive(
            "cars_test.tgz",
            gives="cars_test",
            url="https://ai.stanford.edu/~jkrause/car196/cars_test.tgz",
            size=977350468,
            sha256="bffea656d6f425cba3c91c6d83336e4c5f86c6cffd8975b0f375d3a10da8e243",
        ),
        Archive(
            "car_devkit.tgz",
            gives="devkit",
            url="https://ai.stanford.edu/~jkrause/cars/car_devkit.tgz",
            size=330960,
            sha256="b97deb463af7d58b6bfaa18b2a4de9829f0f79e8ce663dfa9261bf7810e9accd",
        ),
        Archive(
            TEST_IMAGES,
            url=f"https://ai.stanford.edu/~jkrause/car196/{TEST_IMAGES}",
            size=185758,
            sha256="790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05",
        ),
    )

    def read_index(self) -> SampleIndex:
        folder = self.named_folder()
        if (folder / ALL_IMAGES).is_file():
            keys, class_ids = self._annotations(folder / ALL_IMAGES, "relative_im_path")
            class_names = self._variable(folder / ALL_IMAGES, "class_names")
        else:
            keys, class_ids = self._both_parts(folder)
            class_names = self._variable(folder / CLASS_NAMES, "class_names")
        names = [str(name) for name in np.atleast_1d(class_names)]
        outside = [class_id for class_id in class_ids if not 1 <= class_id <= len(names)]
        if outside:
            raise UserError(
                f"{folder}: an image of class {outside[0]}, and names of {len(names)} classes: {self.remedy}"
            )
        return SampleIndex(tuple(keys), np.array(class_ids, dtype=np.int64) - 1, tuple(names))

    def _both_parts(self, folder: Path) -> tuple[list[str], list[int]]:
        labelled = [path for path in (folder / TEST_IMAGES, folder / "devkit" / TEST_IMAGES) if path.is_file()]
        missing = [
            name
            for name, there in (
                ("cars_train/", (folder / "cars_train").is_dir()),
                ("cars_test/", (folder / "cars_test").is_dir()),
                (TRAIN_IMAGES, (folder / TRAIN_IMAGES).is_file()),
                (TEST_IMAGES, bool(labelled)),
            )
            if not there
        ]
        if len(missing) == 4:
            raise UserError(
                f"{folder} has neither {ALL_IMAGES} with car_ims/ nor cars_train/ with cars_test/: {self.remedy}"
            )
        if missing:
            raise UserError(
                f"{folder} has only one part of the closed-set split: add {', '.join(missing)}, because all 16,185 "
                "images are merged and split by class"
            )
        keys, class_ids = [], []
        for part, file in (("cars_train", folder / TRAIN_IMAGES), ("cars_test", labelled[0])):
            found = self._annotations(file, "fname")
            keys += [f"{part}/{name}" for name in found[0]]
            class_ids += found[1]
        return keys, class_ids

    def _annotations(self, file: Path, path_field: str) -> tuple[list[str], list[int]]:
        annotations = np.atleast_1d(self._variable(file, "annotations"))
        for wanted in (path_field, "class"):
            if wanted not in (annotations.dtype.names or ()):
                raise UserError(f"{file}: its annotations have no field {wanted}: {self.remedy}")
        return [str(path) for path in annotations[path_field]], [int(number) for number in annotations["class"]]

    def _variable(self, file: Path, name: str) -> np.ndarray:
        from scipy.io import loadmat  # slow to import, and only this data set needs it

        try:
            return loadmat(file, squeeze_me=True, variable_names=[name])[name]
        except FileNotFoundError:
            raise UserError(f"no file {file}: {self.remedy}") from None
        except KeyError:
            raise UserError(f"{file} has no variable {name}: {self.remedy}") from None
        except Exception as error:  # on a broken file scipy raises ValueError, TypeError, zlib.error and more
            raise UserError(f"{file} is not a complete MATLAB file ({error}): {self.remedy}") from None
