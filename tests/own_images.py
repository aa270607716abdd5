"""Images that a test makes: small data sets of one's own."""

from pathlib import Path

import numpy as np
from PIL import Image


def noise_images(folder: Path, number: int, samples: int, height: int, width: int, suffix: str) -> Path:
    """A table of pictures of noise, so many of each class."""
    rows = ["path,label"]
    for each in range(number):
        noise = np.random.default_rng(each).integers(0, 255, (height, width, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{each}{suffix}")
        rows.append(f"{each}{suffix},{each // samples:02d}")
    table = folder / "table.csv"
    table.write_text("\n".join(rows))
    return table


def own_images(folder: Path, classes: int = 16, samples: int = 4) -> Path:
    """A table of grey squares, one shade a class."""
    rows = ["path,label"]
    for number in range(classes):
        for sample in range(samples):
            path = folder / f"{number}_{sample}.png"
            Image.new("RGB", (40, 40), (number * 10, sample * 9, 99)).save(path)
            rows.append(f"{path.name},class {number:02d}")
    table = folder / "table.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def class_folders(folder: Path) -> Path:
    """The images of `own_images`, moved into a folder for each class."""
    for image in sorted(folder.glob("*.png")):
        target = folder / "classes" / f"class {int(image.name.partition('_')[0]):02d}"
        target.mkdir(parents=True, exist_ok=True)
        image.rename(target / image.name)
    return folder / "classes"


def square_folders(folder: Path) -> None:
    """Sixteen folders with four squares each."""
    for number in range(64):
        file = folder / f"class_{number % 16:02d}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number % 16 * 16, number, 99)).save(file)


def image_options(tiny: list[str], table: Path, folder: Path | None = None) -> list[str]:
    """The options of a tiny fit with the table, or the folder of folders, instead of letters."""
    start = tiny.index("--data.dataset.num_classes")
    words = tiny[:start] + tiny[start + 2 :]
    if folder is not None:
        return [*words, "--data.dataset", "ImageFolder", "--data.dataset.folder", str(folder)]
    return [*words, "--data.dataset", "ImageTable", "--data.dataset.table", str(table)]
