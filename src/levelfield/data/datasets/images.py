"""Opening an image file: any mode to RGB, upright, or an error that names the file."""

import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from levelfield.errors import UserError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def open_image(path: Path) -> Image.Image:
    """Decode a file into RGB, turned as its EXIF orientation says.

    Raises:
        UserError: the file is missing, empty, truncated or not an image.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}): restore the file or take it out of the data set"
        ) from None
    return decode_image(content, str(path))


def decode_image(content: bytes, name: str) -> Image.Image:
    """Decode the bytes of an image file called `name`, as `open_image` does."""
    remedy = "replace the file or take it out of the data set"
    if not content:
        raise UserError(f"{name} is empty: {remedy}")
    try:
        with warnings.catch_warnings():
            # Pillow warns of broken EXIF data, which then turn nothing, and of images above 90 million pixels (from
            # twice as many on it refuses them); it names no file.
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(content)) as image:
                image.load()
                return _to_rgb(ImageOps.exif_transpose(image))
    except Image.UnidentifiedImageError:
        raise UserError(f"{name} is not an image: {remedy}") from None
    except Exception as error:  # on a broken file Pillow's decoders raise OSError, SyntaxError, TypeError and more
        reason = " ".join(str(error).split())
        raise UserError(f"{name} is not a whole, readable image ({reason}): {remedy}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    """16 bits are scaled to 8, not cut off, and what is transparent lies on white."""
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError("its pixels have more than 16 bits")
        image = Image.fromarray(np.round(levels / 257).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("its pixels are floating point numbers")
    elif image.has_transparency_data:
        opaque = image.convert("RGBA")
        image = Image.new("RGBA", opaque.size, "white")
        image.alpha_composite(opaque)
    return image if image.mode == "RGB" else image.convert("RGB")
