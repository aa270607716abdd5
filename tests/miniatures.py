"""The large image data sets in miniature, in the layouts that their publishers give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def picture(path: Path, label: int, sample: int) -> None:
    """A JPEG of one shade a class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 36), (label * 12 % 256, sample * 30 % 256, 99)).save(path)


def cub200(root: Path, classes: int = 16, samples: int = 4) -> Path:
    """`CUB_200_2011/` with its lists, the official split among them; returns its folder."""
    folder = root / "cub200" / "CUB_200_2011"
    lists: dict[str, list[str]] = {name: [] for name in ("images", "image_class_labels", "train_test_split", "classes")}
    for label in range(classes):
        species = f"{label + 1:03d}.Bird_{label}"
        lists["classes"].append(f"{label + 1} {species}")
        for sample in range(samples):
            number = label * samples + sample
            path = f"{species}/Bird_{label}_{sample:04d}_{number}.jpg"
            picture(folder / "images" / path, label, sample)
            for name, text in zip(lists, (path, label + 1, sample % 2), strict=False):
                lists[name].append(f"{number + 1} {text}")
    for name, lines in lists.items():
        _lines(folder / f"{name}.txt", lines)
    return folder


def cars196(root: Path, classes: int = 16, samples: int = 4) -> Path:
    """`cars_train/`, `cars_test/` and their annotations; every class is in both. Returns their folder."""
    folder = root / "cars196"
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    for part, parity in (("train", 0), ("test", 1)):
        rows = []
        for label in range(classes):
            for sample in range(parity, samples, 2):
                name = f"{len(rows) + 1:05d}.jpg"
                picture(folder / f"cars_{part}" / name, label, sample)
                rows.append((1, 2, 30, 30, label + 1, name))
        (folder / "devkit").mkdir(exist_ok=True)
        file = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}[part]
        savemat(folder / file, {"annotations": structs(fields, rows)})
    unlabelled = structs((*fields[:4], "fname"), [(*row[:4], row[5]) for row in rows])
    savemat(folder / "devkit/cars_test_annos.mat", {"annotations": unlabelled})
    savemat(folder / "devkit/cars_meta.mat", {"class_names": cells(car_names(classes))})
    return folder


def sop(root: Path, classes: int = 16, samples: int = 4, train_classes: int | None = None) -> Path:
    """`Stanford_Online_Products/` with its two lists; returns its folder."""
    folder = root / "sop" / "Stanford_Online_Products"
    train_classes = classes // 2 if train_classes is None else train_classes
    header = "image_id class_id super_class_id path"
    rows: dict[str, list[str]] = {"train": [header], "test": [header]}
    for label in range(classes):
        kind = ("bicycle", "chair")[label % 2]
        for sample in range(samples):
            path = f"{kind}_final/{110000 + label}_{sample}.JPG"
            picture(folder / path, label, sample)
            part = "train" if label < train_classes else "test"
            rows[part].append(f"{label * samples + sample + 1} {label + 1} {label % 2 + 1} {path}")
    for part, lines in rows.items():
        _lines(folder / f"Ebay_{part}.txt", lines)
    return folder


def inshop(root: Path, classes: int = 16, samples: int = 4) -> Path:
    """The partition and `img/`; returns the partition's file."""
    folder = root / "inshop"
    lines = []
    for label in range(classes):
        for sample in range(samples):
            path = f"img/WOMEN/Dresses/id_{label + 1:08d}/{sample + 1:02d}_1_front.jpg"
            picture(folder / path, label, sample)
            # Every other item is trained on: the halves are not the first and the second.
            status = "train" if label % 2 else ("query", "gallery")[sample % 2]
            lines.append(f"{path:<72}id_{label + 1:08d}   {status}")
    file = folder / "list_eval_partition.txt"
    _lines(file, [str(len(lines)), "image_name item_id evaluation_status", *lines])
    return file


MINIATURES: dict[str, Callable[[Path], Path]] = {"cub200": cub200, "cars196": cars196, "sop": sop, "inshop": inshop}


def car_names(classes: int) -> list[str]:
    return [f"Make {label} C/V Van 2012" for label in range(classes)]


def cells(texts: Sequence[str]) -> np.ndarray:
    """A MATLAB row of texts."""
    array = np.empty((1, len(texts)), dtype=object)
    array[0] = texts
    return array


def structs(fields: Sequence[str], rows: Sequence[tuple]) -> np.ndarray:
    """A MATLAB row of structs."""
    return np.array([rows], dtype=[(field, object) for field in fields])


def _lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("\n".join(lines) + "\n")
