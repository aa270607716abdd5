"""Short words in the typefaces of the packages fontpkg-*: class = type family."""

import csv
import importlib.util
import json
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from levelfield.data.datasets.base import MetricDataset, VerifyReport
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError

WORDS = (
    *("a", "g", "Q", "Rag", "ham", "Bix", "joy", "Keg", "Wry", "fez", "Sat", "gyp", "e", "R", "Quo", "web", "Jam"),
    *("try", "Vex", "dog", "Pun", "k", "B", "Zoo", "ant", "Mug", "sly", "Box", "hue", "Yak", "Fig", "y", "S", "bay"),
    *("Cud", "elf", "Gem", "Hut", "ink", "Oar", "Lip", "quay", "rye", "Tug", "W", "t", "vat", "Nag", "jet", "Dew"),
    *("sky", "Urn", "axe", "Pig", "owl", "M", "f", "zip", "Ray", "cab"),
)
"""One picture of each in every family: the words say nothing about the class."""

FACES = {"regular": ("normal", 400), "bold": ("normal", 700), "italic": ("italic", 400), "bolditalic": ("italic", 700)}
"""Style and weight of the faces that a family may have; the words go round them."""

FAMILIES = Path(__file__).with_suffix(".csv")
"""Number, package, licence and copyright of each family; new ones go to the end, so that the numbers stay.

Not there: families that look like another (Heebo's Latin letters are Roboto's). Of these more than half of the
pictures, of the same word in each face that both have, are alike: the sum of squared differences at 64 px is at most 2%
of the heavier one's sum of squares. A list, so that the classes do not depend on the version of FreeType; a test
computes it again.
"""

# In shares of the picture's side: the largest em, and the box that a word shrinks to.
LARGEST_EM = 0.7
BOX = 0.84


class Typefaces(MetricDataset):
    """A class is a type family, a sample is a letter or short word in one of its faces: 186 classes of 60.

    Black on white, centred, as large as fits. Regular, bold, italic and bold italic as far as the family has them.
    Tested with: the typefaces themselves.

    Args:
        num_classes: keep only the first so many families; None keeps all.
        image_size: side of the pictures in pixels.

    Example:
        >>> typefaces = Typefaces(num_classes=20)
        >>> image, label = typefaces[3]
        >>> image.size, typefaces.class_names[label]
        ((64, 64), '000 ABeeZee')
    """

    name = "typefaces"
    licence = "SIL Open Font License 1.1; Apache License 2.0 for 5 of the families"
    source = "the Python packages fontpkg-*: pip install 'levelfield[typefaces]'"
    num_classes_published = 186
    num_samples_published = 11160

    def __init__(self, num_classes: int | None = None, image_size: int = 64) -> None:
        if image_size < 8:
            raise UserError(f"image_size {image_size} is too small for words: give 8 or more")
        if num_classes is not None and not 1 <= num_classes <= self.num_classes_published:
            raise UserError(f"num_classes {num_classes} of Typefaces must be from 1 to {self.num_classes_published}")
        self.num_classes = num_classes
        self.image_size = image_size

    def read_index(self) -> SampleIndex:
        families = self._families()
        keys = []
        for family in families:
            faces = list(_faces(family["package"]))
            keys += [f"{family['package']}/{faces[i % len(faces)]}/{word}" for i, word in enumerate(WORDS)]
        return SampleIndex(
            tuple(keys),
            np.repeat(np.arange(len(families), dtype=np.int64), len(WORDS)),
            tuple(f"{family['number']} {family['family']}" for family in families),
        )

    def load(self, key: str) -> Image.Image:
        package, face, word = key.split("/")
        font = _font(package, face, 2 * self.image_size)  # drawn large and reduced: hints and whole sizes do not show
        left, top, right, bottom = font.getbbox(word, anchor="ls")
        drawn = Image.new("L", (round(right - left), round(bottom - top)), "white")
        ImageDraw.Draw(drawn).text((-left, -top), word, fill="black", font=font, anchor="ls")
        scale = min(LARGEST_EM / 2, BOX * self.image_size / drawn.width, BOX * self.image_size / drawn.height)
        reduced = drawn.resize((max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale))))
        image = Image.new("L", (self.image_size, self.image_size), "white")
        image.paste(reduced, ((self.image_size - reduced.width) // 2, (self.image_size - reduced.height) // 2))
        return image.convert("RGB")

    def size_of(self, key: str) -> int:
        """Size of the typeface's file, with the picture's side: both decide what is drawn."""
        package, face, _ = key.split("/")
        return _faces(package)[face][0].stat().st_size * self.image_size

    def verify(self) -> VerifyReport:
        """Opens every sample, and names the packages of another version than the listed one."""
        report = super().verify()
        for family in self._families():
            package, wanted, found = family["package"], family["version"], version(family["package"])
            if found != wanted:
                report.problems.append(f"{package} is version {found}, not {wanted}: pip install {package}=={wanted}")
        return report

    def expected_counts(self) -> tuple[int | None, int | None]:
        if self.num_classes is None:
            return super().expected_counts()
        return self.num_classes, self.num_classes * len(WORDS)

    def _families(self) -> list[dict[str, str]]:
        with FAMILIES.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))[: self.num_classes]


@cache
def _faces(package: str) -> dict[str, tuple[Path, int | None]]:
    """Font file of each face that the family has, and the weight to set where one file has them all."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the typefaces of {package} are not installed: pip install 'levelfield[typefaces]'")
    folder = Path(spec.submodule_search_locations[0])
    files = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["files"]
    found: dict[str, tuple[Path, int | None]] = {}
    for face, (style, weight) in FACES.items():
        for file in files:
            if file["style"] == style and (file["variable"] or file["weight"] == weight):
                found[face] = (folder / file["path"], weight if file["variable"] else None)
    return found


@lru_cache(maxsize=1024)
def _font(package: str, face: str, size: int) -> ImageFont.FreeTypeFont:
    file, weight = _faces(package)[face]
    # The basic layout is in every build of Pillow, and short Latin words need no shaping.
    font = ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)
    if weight is not None:
        axes: list[Any] = font.get_variation_axes()
        font.set_variation_by_axes([weight if axis["name"] == b"Weight" else axis["default"] for axis in axes])
    return font
