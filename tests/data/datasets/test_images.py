"""A corpus of image files as they are found in data sets: each is read right, or is one line that names it."""

import os
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.datasets import ImageFolder
from levelfield.data.images import open_image
from levelfield.data.verify import verify

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def quarters() -> np.ndarray:
    """24 x 16 pixels: red and green above, blue and white below."""
    pixels = np.zeros((16, 24, 3), dtype=np.uint8)
    pixels[:8, :12], pixels[:8, 12:], pixels[8:, :12], pixels[8:, 12:] = RED, GREEN, BLUE, WHITE
    return pixels


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    image.save(buffer := BytesIO(), kind, **options)
    return buffer.getvalue()


def jpeg(image: Image.Image, **options: object) -> bytes:
    return encoded(image, "JPEG", quality=95, subsampling=0, **options)


COLOUR = Image.fromarray(quarters())
GREY = COLOUR.convert("L")
CORNERS = [RED, GREEN, BLUE, WHITE]
GREYS = [(grey,) * 3 for grey in (76, 150, 29, 255)]  # ITU-R 601: 0.299 red + 0.587 green + 0.114 blue
RAMP = np.repeat(np.repeat(np.array([[0, 200], [128 * 257 - 100, 65535]], dtype=np.uint16), 8, 0), 12, 1)
RAMP_SHOWN = [(grey,) * 3 for grey in (0, 1, 128, 255)]  # of 65535, to the nearest
CLEAR = np.repeat([[0] * 12 + [255] * 12], 16, 0).astype(np.uint8)  # the left half
RGBA = Image.fromarray(np.dstack([quarters(), CLEAR]))
GREY_ALPHA = Image.merge("LA", [GREY, Image.fromarray(CLEAR)])
SHOWN_ON_WHITE = [WHITE, GREEN, WHITE, WHITE]
SIDEWAYS = Image.fromarray(np.ascontiguousarray(quarters()[:, ::-1].transpose(1, 0, 2)))
EXIF = Image.Exif()
EXIF[0x0112] = 6  # the first row is the right side, from the top down


def png(width: int, height: int, depth: int, colours: int, rows: bytes) -> bytes:
    """A PNG file, chunk by chunk."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def palette(**transparency: object) -> bytes:
    image = Image.new("P", (24, 16))
    image.putpalette([*RED, *GREEN, *BLUE, *WHITE])
    image.putdata([2 * (row >= 8) + (column >= 12) for row in range(16) for column in range(24)])
    return encoded(image, "PNG", **transparency)


JPEG = jpeg(COLOUR)
CMYK = Image.fromarray(np.dstack([255 - quarters(), np.zeros((16, 24), np.uint8)]), "CMYK")
DEEP_ROWS = b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in quarters())
READ: dict[str, tuple[str, bytes, list[tuple[int, int, int]]]] = {
    "colour JPEG": ("1.jpg", JPEG, CORNERS),
    "colour TIFF": ("1.tif", encoded(COLOUR, "TIFF"), CORNERS),
    "grey PNG": ("1.png", encoded(GREY, "PNG"), GREYS),
    "1-bit PNG": ("1.png", encoded(Image.fromarray(RAMP > 40000), "PNG"), [BLACK, BLACK, BLACK, WHITE]),
    "palette": ("1.png", palette(), CORNERS),
    "palette with a clear colour": ("1.png", palette(transparency=0), [WHITE, GREEN, BLUE, WHITE]),
    "palette with shares": ("1.png", palette(transparency=b"\xff\xff\x00\xff"), [RED, GREEN, WHITE, WHITE]),
    "RGBA": ("1.png", encoded(RGBA, "PNG"), SHOWN_ON_WHITE),
    "RGBA WebP": ("1.webp", encoded(RGBA, "WEBP", lossless=True), SHOWN_ON_WHITE),
    "grey with alpha": ("1.png", encoded(GREY_ALPHA, "PNG"), [WHITE, GREYS[1], WHITE, WHITE]),
    "CMYK JPEG": ("1.jpg", jpeg(CMYK), CORNERS),
    "16-bit grey PNG": ("1.png", encoded(Image.fromarray(RAMP), "PNG"), RAMP_SHOWN),
    "16-bit grey TIFF": ("1.tif", encoded(Image.fromarray(RAMP), "TIFF"), RAMP_SHOWN),
    "8 bits in a 32-bit TIFF": ("1.tif", encoded(GREY.convert("I"), "TIFF"), GREYS),
    "16 bits in a 32-bit TIFF": ("1.tif", encoded(Image.fromarray(RAMP.astype(np.int32)), "TIFF"), RAMP_SHOWN),
    "16-bit colour PNG": ("1.png", png(24, 16, 16, 2, DEEP_ROWS), CORNERS),
    "animated GIF": ("1.gif", encoded(COLOUR, "GIF", save_all=True, append_images=[GREY]), CORNERS),
    "EXIF orientation 6": ("1.jpg", jpeg(SIDEWAYS, exif=EXIF), CORNERS),
    "EXIF cut short": ("1.jpg", jpeg(COLOUR, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12"), CORNERS),
    "a name with blanks, accents and an emoji": ("a jay in été 🐦.jpg", JPEG, CORNERS),
    "a JPEG 2000": ("1.jp2", encoded(COLOUR, "JPEG2000"), CORNERS),
    "a JPEG called .jfif": ("1.jfif", JPEG, CORNERS),
    "an upper-case suffix": ("DSC0001.JPG", JPEG, CORNERS),
    "a PNG called .jpg": ("1.jpg", encoded(COLOUR, "PNG"), CORNERS),
}
HALF = "is not a complete, readable image"
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
BROKEN: dict[str, tuple[str, bytes | None, str]] = {
    "zero bytes": ("1.jpg", b"", "is empty"),
    "a JPEG without its last bytes": ("1.jpg", JPEG[:-40], HALF),
    "a PNG with other bytes": ("1.png", png(24, 16, 8, 2, b"\0")[:50] + b"!" * 20, HALF),
    **{
        f"{share:.0%} of a {kind}": ("1.png", content[: int(len(content) * share)], "is not ")
        for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")
        for content in [encoded(NOISE, kind)]
        for share in (0.3, 0.8)
    },
    "a web page called .jpg": ("1.jpg", b"<!DOCTYPE html><html>404</html>", "is not an image"),
    "a drawing in SVG": ("1.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image"),
    "a page for Ghostscript": ("1.jpg", encoded(COLOUR, "EPS"), "is not an image"),
    "a TIFF's first bytes": ("1.tif", b"II*\0\x08\0\0\0", "is not an image"),
    "100 million pixels": ("1.png", png(10000, 10000, 8, 2, b""), "has more than 89,478,485 pixels"),
    "a pipe": ("1.jpg", None, "is not a regular file"),
    "floating point": ("1.tif", encoded(Image.new("F", (2, 2)), "TIFF"), "floating point numbers"),
    "32 bits": ("1.tif", encoded(Image.new("I", (2, 2), 70000), "TIFF"), "more than 16 bits"),
}


@pytest.mark.parametrize("case", READ)
def test_a_sound_file_is_read_right(case: str, tmp_path: Path) -> None:
    name, content, corners = READ[case]
    (tmp_path / name).write_bytes(content)
    image = open_image(tmp_path / name)
    assert (image.mode, image.size) == ("RGB", (24, 16))
    shown = [image.getpixel(place) for place in ((3, 3), (20, 3), (3, 12), (20, 12))]
    np.testing.assert_allclose(shown, corners, atol=0 if name.endswith((".png", ".bmp", ".gif", ".ppm")) else 4)


def test_broken_files_are_a_line_each_and_verify_lists_them_all(tmp_path: Path) -> None:
    for number, (name, content, said) in enumerate([*READ.values(), *BROKEN.values()]):
        file = tmp_path / f"class {number:02d}" / name
        file.parent.mkdir()
        os.mkfifo(file) if content is None else file.write_bytes(content)
        if number >= len(READ):
            with pytest.raises(UserError, match=f"^{file}.* {said}.*remove it from the data set.*") as caught:
                open_image(file)
            assert "\n" not in str(caught.value)
    report = verify(ImageFolder(tmp_path))
    assert (report.num_classes, report.num_samples) == (len(READ) + len(BROKEN),) * 2
    assert len(report.problems) == len(BROKEN)
    for number, problem in enumerate(report.problems, start=len(READ)):
        assert problem.startswith(str(tmp_path / f"class {number:02d}"))
    with pytest.raises(UserError, match=r"missing\.jpg .*No such file"):
        open_image(tmp_path / "missing.jpg")
