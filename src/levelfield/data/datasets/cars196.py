"""Cars-196: photographs of 196 makes and models of cars."""

from typing import Any

from levelfield.data.dataset import NamedDataset, SampleIndex, index_of_classes

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
