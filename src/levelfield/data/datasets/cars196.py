"""Cars-196: photographs of 196 makes and models of cars."""

from typing import Any

from levelfield.data.dataset import Archive, NamedDataset
from levelfield.data.index import SampleIndex, index_of_classes

TEST_IMAGES = "cars_test_annos_withlabels.mat"


class Cars196(NamedDataset):
    """Krause, Stark, Deng and Fei-Fei, "3D Object Representations for Fine-Grained Categorization", 2013.

    Classes are in the order of their official numbers. Every class is in both official parts, so the parts are merged
    and split by class. A single part is rejected, because a model would be tested on its training classes.
    Tested with: a small replica.

    Args:
        root: holds `cars196/` with `cars_train/`, `cars_test/`, `devkit/` and `cars_test_annos_withlabels.mat`, as in
            the official archives; None takes the environment's LEVELFIELD_DATA.
    """

    name = "cars196"
    licence = "none stated"
    source = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html"
    num_classes_published = 196
    num_samples_published = 16185
    splits = "half, vasilev-dyakonov"
    archives = (
        Archive(
            "https://ai.stanford.edu/~jkrause/car196/cars_train.tgz",
            979_269_282,
            "512b227b30e2f0a8aab9e09485786ab4479582073a144998da74d64b801fd288",
            gives="cars_train",
        ),
        Archive(
            "https://ai.stanford.edu/~jkrause/car196/cars_test.tgz",
            977_350_468,
            "bffea656d6f425cba3c91c6d83336e4c5f86c6cffd8975b0f375d3a10da8e243",
            gives="cars_test",
        ),
        Archive(
            "https://ai.stanford.edu/~jkrause/cars/car_devkit.tgz",
            330_960,
            "b97deb463af7d58b6bfaa18b2a4de9829f0f79e8ce663dfa9261bf7810e9accd",
            gives="devkit",
        ),
        Archive(
            f"https://ai.stanford.edu/~jkrause/car196/{TEST_IMAGES}",
            185_758,
            "790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05",
        ),
    )

    def read_index(self) -> SampleIndex:
        samples: list[tuple[str, int]] = []
        for part, file in (("cars_train", "devkit/cars_train_annos.mat"), ("cars_test", TEST_IMAGES)):
            annotations = self._variable(file, "annotations")
            images = zip(annotations["fname"], annotations["class"], strict=True)
            samples += [(f"{part}/{name}", int(number)) for name, number in images]
        names = map(str, self._variable("devkit/cars_meta.mat", "class_names"))
        with self.sound(self.named_folder()):
            return index_of_classes(samples, dict(enumerate(names, start=1)))

    def _variable(self, name: str, variable: str) -> Any:
        from scipy.io import loadmat  # slow to import, and only this data set needs it

        file = self.named_folder() / name
        with self.sound(file):
            return loadmat(file, squeeze_me=True, variable_names=[variable])[variable]
