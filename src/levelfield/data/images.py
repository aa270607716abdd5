"""Open an image file as upright RGB, or raise an error that names the file."""

import math
import os
import re
import stat
import warnings
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from unicodedata import normalize

import numpy as np
from PIL import Image, ImageOps

from levelfield.core.errors import UserError

# Formats of Pillow that need another program (Ghostscript, Windows), have no decoder, or unpack without a limit.
REFUSED = frozenset({"BUFR", "EPS", "FITS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})
# Larger than any uncompressed image with as many pixels as Pillow accepts.
LARGEST_FILE = 1 << 30
# As `warnings.filterwarnings("ignore", module=r"PIL\.")` puts it into `warnings.filters`.
NO_WARNINGS = ("ignore", None, Warning, re.compile(r"PIL\."), 0)
REMEDY = "replace the file or remove it from the data set"


@cache
def image_formats() -> tuple[str, ...]:
    """The formats that Pillow decodes here, JPEG and PNG first: the order of the others depends on imports."""
    Image.init()
    return tuple(name for name in dict.fromkeys(["JPEG", "PNG", *Image.OPEN]) if name not in REFUSED)


@cache
def image_suffixes() -> frozenset[str]:
    """The suffixes of images, in lower case: `.jpg` and the others of `image_formats`."""
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in image_formats())


def open_image(path: Path) -> Image.Image:
    """Decode a file into RGB, rotated by its EXIF orientation.

    Raises:
        UserError: the file is missing, empty, truncated, too large or not an image.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe may block
            raise UserError(f"{path} is not a regular file: remove it from the data set")
        if status.st_size > LARGEST_FILE:
            raise UserError(f"{path} is larger than 1 GiB: reduce the image or remove it from the data set")
        content = path.read_bytes()
    except OSError as error:
        remedy = other_spelling(path) or "restore the file or remove it from the data set"
        raise UserError(f"cannot read {path} ({error.strerror}): {remedy}") from None
    return decode_image(content, str(path))


def other_spelling(path: Path) -> str:
    """What to write instead of `path`, if there is a file that differs only in how letters or folders are encoded."""
    others = {"/ instead of \\": str(path).replace("\\", "/")}
    others |= {f"its letters in the Unicode form {form}": normalize(form, str(path)) for form in ("NFC", "NFD")}
    return next((f"write {what}" for what, it in others.items() if it != str(path) and os.path.isfile(it)), "")


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decode the bytes of an image file, like `open_image`; `name` is for messages, and the image's `filename`.

    A tiny file can contain an image that fills the memory, so images with more pixels than `PIL.Image.MAX_IMAGE_PIXELS`
    (89 million by default) are rejected before decoding.
    """
    if not content:
        raise UserError(f"{name} is empty: {REMEDY}")
    return as_rgb(lambda: Image.open(BytesIO(content), formats=image_formats()), name)


def as_rgb(opened: Callable[[], Image.Image], name: str) -> Image.Image:
    """An image of Pillow by the rules for files: upright RGB, 8 bits, on white where it is transparent.

    Raises:
        UserError: as `open_image`; names `name`.
    """
    try:
        # Pillow warns about broken EXIF data (which then rotate nothing) and many pixels without naming the file.
        # Catching warnings would affect other threads; setting the filter again repeats other packages' warnings.
        if warnings.filters[:1] != [NO_WARNINGS]:
            warnings.filterwarnings("ignore", module=r"PIL\.")
        image = opened()
        if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
            raise Image.DecompressionBombError
        rgb = _to_rgb(ImageOps.exif_transpose(image))
        rgb.filename = name  # type: ignore[attr-defined]  # Pillow sets it only on opened images
        return rgb
    except Image.UnidentifiedImageError:
        raise UserError(f"{name} is not an image: {REMEDY}") from None
    except Image.DecompressionBombError:
        raise UserError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: reduce the image or remove it from the data set"
        ) from None
    except Exception as error:  # on a broken file Pillow's decoders raise OSError, SyntaxError, TypeError and more
        reason = " ".join(str(error).split())
        raise UserError(f"{name} is not a complete, readable image ({reason}): {REMEDY}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    """RGB with 16 bits scaled to 8 bits, and transparent pixels on white."""
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError("its pixels have more than 16 bits")
        if image.mode != "I" or levels.max() > 255:  # else 8 bits, stored in 32
            levels = (levels.astype(np.int32) + 128) // 257  # rounds
        image = Image.fromarray(levels.astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("its pixels are floating point numbers")
    elif image.has_transparency_data:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    return image if type(image) is Image.Image and image.mode == "RGB" else image.convert("RGB")
