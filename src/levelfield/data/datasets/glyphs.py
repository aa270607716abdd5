"""Characters in the typefaces that come with matplotlib: the embedded data set, nothing to download."""

import unicodedata
from collections import defaultdict
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset, SampleIndex, index_of_classes
from levelfield.data.hashes import file_hash

FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-BoldOblique", "-Oblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-BoldOblique", "-Oblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-BoldItalic", "-Italic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "BolIta", "Italic")),
)
MIN_FACES = 12
# Characters that look like one of a lower code point in more than half of the faces with both: for images of 64 px, the
# sum of squared differences is at most 2% of the larger sum of squares. A fixed list, for FreeType's versions differ.
LOOKALIKES = frozenset(
    "ĐƉəΑΒΕΖΗΙΚΛΜΝΟΡΣΤΥΧΪΫεμοϲϳϷϸϹЀЁЅІЇЈАБВЕМНОПРСТХаеорсухёѕіїјѲҪҫҮһӀӐӑӒӓӔӕӖӗӘәӠӡӦӧӨөӯӱԐԚԛԜԝՕասօẟ"
    "\u1f71\u1f73\u1f75\u1f77ὸ\u1f79\u1f7b\u1f7dᾸᾹ\u1fbb\u1fc9\u1fcb\u1fd3ῘῙ\u1fdb\u1fe3Ῡ\u1feb\u1ff9\u1ffb\u2126\u212a\u212bꜦꞍ"
)
# As fractions of the image's side: no accent or descender leaves the image.
EM = 0.625
BASELINE_HEIGHT = 0.72


class Glyphs(MetricDataset):
    """A class is a letter (upper or lower case, in order of code points), a sample is a typeface: 1,228 classes.

    Latin, Greek, Cyrillic, Armenian and Georgian letters in at least 12 of 16 faces (1,348), without 120 that look like
    another (Latin A, Greek Alpha). Black on white, on one baseline, centred horizontally, all letters of a face at the
    same scale. Letters with different accents are different classes: the data set is fine-grained.
    Tested with: the typefaces themselves.

    Args:
        num_classes: keep only the first letters; None keeps all. The first 240 are Latin, most of them with an accent,
            and nearly as hard to distinguish as all: a pretrained EfficientNet-Lite0 has MAP@R 0.13 on their test half,
            and 0.10 on that of all letters.
        image_size: side of the images in pixels.

    Example:
        >>> glyphs = Glyphs(num_classes=240)
        >>> image, label = glyphs[0]
        >>> image.size, glyphs.class_names[label]
        ((64, 64), 'U+0041 A')
    """

    name = "glyphs"
    licence = "Bitstream Vera, Arev and DejaVu (public domain) fonts; STIX (SIL Open Font License 1.1)"
    source = "the typefaces in the Python package matplotlib"
    num_classes_published = 1228
    num_samples_published: int | None = 16752

    def __init__(self, num_classes: int | None = None, image_size: int = 64) -> None:
        if image_size < 8:
            raise UserError(f"image_size {image_size} is too small for letters: give 8 or more")
        self.num_classes = num_classes
        self.image_size = image_size
        if num_classes is not None:
            self.num_classes_published, self.num_samples_published = num_classes, None

    def read_index(self) -> SampleIndex:
        from matplotlib.ft2font import FT2Font  # slow to import; a list of data sets does not need it

        faces_of = defaultdict(list)
        for face in FACES:
            for code_point, glyph in FT2Font(str(_font_file(face))).get_charmap().items():
                if glyph != 0 and unicodedata.category(chr(code_point)) in ("Lu", "Ll"):
                    faces_of[code_point].append(face)
        letters = [letter for letter in sorted(faces_of) if len(faces_of[letter]) >= MIN_FACES]
        letters = [letter for letter in letters if chr(letter) not in LOOKALIKES]
        if self.num_classes is not None:
            if not 1 <= self.num_classes <= len(letters):
                raise UserError(f"num_classes {self.num_classes} of Glyphs must be from 1 to {len(letters)}")
            letters = letters[: self.num_classes]
        samples = ((f"{letter:04X}/{face}", letter) for letter in letters for face in faces_of[letter])
        return index_of_classes(samples, {letter: f"U+{letter:04X} {chr(letter)}" for letter in letters})

    def load(self, key: str) -> Image.Image:
        code_point, face = key.split("/")
        letter = chr(int(code_point, 16))
        font = _font(face, round(EM * self.image_size))
        left, _, right, _ = font.getbbox(letter, anchor="ls")
        image = Image.new("L", (self.image_size, self.image_size), "white")
        origin = (round((self.image_size - left - right) / 2), round(BASELINE_HEIGHT * self.image_size))
        ImageDraw.Draw(image).text(origin, letter, fill="black", font=font, anchor="ls")
        return image.convert("RGB")

    def content_of(self, key: str) -> str:
        """SHA-256 of the letter, the bytes of its typeface and the side of the image."""
        letter, face = key.split("/")
        return sha256(f"{letter} {_font_hash(face)} {self.image_size}".encode()).hexdigest()


def _font_file(face: str) -> Path:
    import matplotlib  # slow to import

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")
    if not file.is_file():
        raise UserError(f"no typeface {file}: install matplotlib from its wheel, which has the typefaces")
    return file


@lru_cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_font_file(face), size, layout_engine=ImageFont.Layout.BASIC)  # which every Pillow has


@lru_cache
def _font_hash(face: str) -> str:
    return file_hash(_font_file(face)).hex()
