"""Opening an image file: any mode to RGB, upright, or an error that names the file."""

import math
import stat
import warnings
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from levelfield.errors import UserError

# Formats that Pillow knows and that are no pictures here: read by another program (Ghostscript, Windows), without a
# decoder, or unpacked without a limit.
NO_PICTURES = frozenset({"BUFR", "EPS", "FITS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})
# The first to be tried: the others stand in the order in which libraries have imported them.
USUAL = ("JPEG", "PNG")
# An uncompressed picture of as many pixels as Pillow takes is smaller, however deep.
LARGEST_FILE = 1 << 30


@cache
def image_formats() -> tuple[str, ...]:
    """The formats that this machine's Pillow decodes by itself, in the order in which a file is tried on them."""
    Image.init()
    return tuple(name for name in dict.fromkeys([*USUAL, *Image.OPEN]) if name not in NO_PICTURES)


@cache
def image_suffixes() -> frozenset[str]:
    """What the names of images end in, in lower case: `.jpg` and every other of `image_formats`."""
    known = image_formats()
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in known)


def open_image(path: Path) -> Image.Image:
    """Decode a file into RGB, turned as its EXIF orientation says.

    Raises:
        UserError: the file is missing, empty, truncated, too large or not an image.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # to open a pipe may take for ever
            raise UserError(f"{path} is no regular file: take it out of the data set")
        if status.st_size > LARGEST_FILE:
            raise UserError(f"{path} is larger than 1 GiB: reduce the image or take it out of the data set")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}): restore the file or take it out of the data set"
        ) from None
    return decode_image(content, str(path))


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decode the bytes of an image file called `name`, as `open_image` does.

    A file of a few bytes can hold a picture that fills the memory: those of more pixels than `PIL.Image`'s
    `MAX_IMAGE_PIXELS`, 89 million unless changed, are refused before they are decoded.
    """
    remedy = "replace the file or take it out of the data set"
    if not content:
        raise UserError(f"{name} is empty: {remedy}")
    try:
        # Pillow warns of broken EXIF data, which then turn nothing, and of too many pixels; it names no file. To catch
        # its warnings would change what the other threads see of theirs: pictures are opened in threads too.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        with Image.open(BytesIO(content), formats=image_formats()) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise Image.DecompressionBombError
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return _to_rgb(image)
    except Image.UnidentifiedImageError:
        raise UserError(f"{name} is not an image: {remedy}") from None
    except Image.DecompressionBombError:
        raise UserError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: reduce the image or take it out of the data set"
        ) from None
    except Exception as error:  # on a broken file Pillow's decoders raise OSError, SyntaxError, TypeError and more
        reason = " ".join(str(error).split())
        raise UserError(f"{name} is not a whole, readable image ({reason}): {remedy}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    """16 bits are scaled to 8, not cut off, and what is transparent lies on white."""
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError("its pixels have more than 16 bits")
        image = Image.fromarray(((levels.astype(np.int32) + 128) // 257).astype(np.uint8))  # rounds
    elif image.mode == "F":
        raise ValueError("its pixels are floating point numbers")
    elif image.has_transparency_data:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
    return image if type(image) is Image.Image and image.mode == "RGB" else image.convert("RGB")
