"""A corpus of files as they are found in data sets: each is read right, or is one line that names it.

Damaged and hostile archives are in test_extract.py, transfers that fail in test_download.py.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from miniatures import cars196_parts, cars196_pooled, cells, cub200, dogs130, inshop, sop, structs
from PIL import Image
from scipy.io import savemat

from levelfield.cli.data import named_datasets
from levelfield.data.datasets import ImageFolder, ImageTable
from levelfield.data.datasets.images import open_image
from levelfield.errors import UserError

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
BLACK = (0, 0, 0)


def quarters() -> np.ndarray:
    """24 x 16 pixels: red and green above, blue and white below."""
    pixels = np.zeros((16, 24, 3), dtype=np.uint8)
    pixels[:8, :12], pixels[:8, 12:], pixels[8:, :12], pixels[8:, 12:] = RED, GREEN, BLUE, WHITE
    return pixels


COLOUR = Image.fromarray(quarters())
CORNERS = [RED, GREEN, BLUE, WHITE]
GREYS = [(grey,) * 3 for grey in (76, 150, 29, 255)]  # ITU-R 601: 0.299 red + 0.587 green + 0.114 blue
RAMP = np.repeat(np.repeat(np.array([[0, 257], [128 * 257, 65535]], dtype=np.uint16), 8, 0), 12, 1)
RAMP_SHOWN = [(grey,) * 3 for grey in (0, 1, 128, 255)]
LEFT_HALF_CLEAR = np.dstack([quarters(), np.repeat([[0] * 12 + [255] * 12], 16, 0).astype(np.uint8)])
SHOWN_ON_WHITE = [WHITE, GREEN, WHITE, WHITE]


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int) -> bytes:
    """A JPEG that is stored as EXIF 2.3 draws `orientation`, and shows the quarters upright."""
    upright = quarters()
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright[:, ::-1].transpose(1, 0, 2),  # the first row is the right side, from the top down
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: upright[::-1].transpose(1, 0, 2),  # the first row is the left side, from the bottom up
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(np.ascontiguousarray(stored)), "JPEG", quality=95, subsampling=0, exif=exif)


def png(width: int, height: int, depth: int, colours: int, rows: bytes) -> bytes:
    """A PNG file, chunk by chunk."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def palette(transparent: int | None = None) -> bytes:
    image = Image.new("P", (24, 16))
    image.putpalette([*RED, *GREEN, *BLUE, *WHITE])
    image.putdata([2 * (row >= 8) + (column >= 12) for row in range(16) for column in range(24)])
    return encoded(image, "PNG", **({} if transparent is None else {"transparency": transparent}))


def animated(kind: str) -> bytes:
    return encoded(COLOUR, kind, save_all=True, append_images=[Image.new("RGB", (24, 16))], **(
        {"lossless": True} if kind == "WEBP" else {}
    ))  # fmt: skip


def of_size(content: bytes, size: tuple[int, int], claimed: tuple[int, int], form: str) -> bytes:
    """A file that claims another size in its header."""
    assert struct.pack(form, *size) in content
    return content.replace(struct.pack(form, *size), struct.pack(form, *claimed), 1)


def tall_tiff() -> bytes:
    """A TIFF of 24 x 16 pixels that claims 4.2 million rows: tag 257, one 16-bit or 32-bit number."""
    content = encoded(COLOUR, "TIFF")
    for kind in (3, 4):
        content = content.replace(struct.pack("<HHLL", 257, kind, 1, 16), struct.pack("<HHLL", 257, 4, 1, 1 << 22))
    return content


JPEG = encoded(COLOUR, "JPEG", quality=95, subsampling=0)
CMYK = Image.fromarray(np.dstack([255 - quarters(), np.zeros((16, 24), np.uint8)]), "CMYK")
READ: dict[str, tuple[str, bytes, list[tuple[int, int, int]]]] = {
    "colour JPEG": ("1.jpg", JPEG, CORNERS),
    "colour BMP": ("1.bmp", encoded(COLOUR, "BMP"), CORNERS),
    "colour WebP": ("1.webp", encoded(COLOUR, "WEBP", lossless=True), CORNERS),
    "colour TIFF": ("1.tif", encoded(COLOUR, "TIFF"), CORNERS),
    "portable pixmap": ("1.ppm", encoded(COLOUR, "PPM"), CORNERS),
    "grey JPEG": ("1.jpg", encoded(COLOUR.convert("L"), "JPEG", quality=95), GREYS),
    "grey PNG": ("1.png", encoded(COLOUR.convert("L"), "PNG"), GREYS),
    "1-bit PNG": ("1.png", encoded(Image.fromarray(RAMP > 40000), "PNG"), [BLACK, BLACK, BLACK, WHITE]),
    "palette": ("1.png", palette(), CORNERS),
    "palette with a clear colour": ("1.png", palette(transparent=0), [WHITE, GREEN, BLUE, WHITE]),
    "RGBA": ("1.png", encoded(Image.fromarray(LEFT_HALF_CLEAR), "PNG"), SHOWN_ON_WHITE),
    "RGBA WebP": ("1.webp", encoded(Image.fromarray(LEFT_HALF_CLEAR), "WEBP", lossless=True), SHOWN_ON_WHITE),
    "grey with alpha": (
        "1.png",
        encoded(Image.merge("LA", [COLOUR.convert("L"), Image.fromarray(LEFT_HALF_CLEAR[..., 3])]), "PNG"),
        [WHITE, GREYS[1], WHITE, WHITE],
    ),
    "CMYK JPEG": ("1.jpg", encoded(CMYK, "JPEG", quality=95, subsampling=0), CORNERS),
    "CMYK TIFF": ("1.tiff", encoded(CMYK, "TIFF"), CORNERS),
    "16-bit grey PNG": ("1.png", encoded(Image.fromarray(RAMP), "PNG"), RAMP_SHOWN),
    "16-bit grey TIFF": ("1.tif", encoded(Image.fromarray(RAMP), "TIFF"), RAMP_SHOWN),
    "8 bits in a 32-bit TIFF": ("1.tif", encoded(COLOUR.convert("L").convert("I"), "TIFF"), GREYS),
    "16 bits in a 32-bit TIFF": ("1.tif", encoded(Image.fromarray(RAMP.astype(np.int32)), "TIFF"), RAMP_SHOWN),
    "16-bit colour PNG": (
        "1.png",
        png(24, 16, 16, 2, b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in quarters())),
        CORNERS,
    ),
    "animated GIF": ("1.gif", animated("GIF"), CORNERS),
    "animated WebP": ("1.webp", animated("WEBP"), CORNERS),
    "animated PNG": ("1.png", animated("PNG"), CORNERS),
    **{f"EXIF orientation {turn}": ("1.jpg", turned(turn), CORNERS) for turn in range(1, 9)},
    "EXIF cut short": (
        "1.jpg",
        encoded(COLOUR, "JPEG", quality=95, subsampling=0, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12"),
        CORNERS,
    ),
    "a name with blanks, accents and an emoji": ("a jay in été 🐦.jpg", JPEG, CORNERS),
    "a JPEG 2000": ("1.jp2", encoded(COLOUR, "JPEG2000"), CORNERS),
    "a JPEG called .jfif": ("1.jfif", JPEG, CORNERS),
    "an upper-case suffix": ("DSC0001.JPG", JPEG, CORNERS),
    "a PNG called .jpg": ("1.jpg", encoded(COLOUR, "PNG"), CORNERS),
}
BROKEN: dict[str, tuple[str, bytes | None, str]] = {
    "zero bytes": ("1.jpg", b"", "is empty"),
    "half a JPEG": ("1.jpg", JPEG[: len(JPEG) // 2], "is not a complete, readable image"),
    "a JPEG without its last bytes": ("1.jpg", JPEG[:-40], "is not a complete, readable image"),
    "half a PNG": ("1.png", encoded(COLOUR, "PNG")[:60], "is not a complete, readable image"),
    "a PNG with a flipped bit": (
        "1.png",
        png(24, 16, 8, 2, b"\0")[:50] + b"!" * 20,
        "is not a complete, readable image",
    ),
    "a text called .jpg": ("1.jpg", b"I was saved by mistake", "is not an image"),
    "a web page called .jpg": ("1.jpg", b"<!DOCTYPE html><html>404</html>", "is not an image"),
    "a drawing in SVG": ("1.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image"),
    "an archive called .png": ("1.png", b"PK\x03\x04" + bytes(40), "is not an image"),
    "400 million pixels": ("1.png", png(20000, 20000, 8, 2, b""), "has more than 89,478,485 pixels: reduce the image"),
    # These were decoded: 16 bytes and more for each of their 100 million pixels.
    "100 million pixels": ("1.png", png(10000, 10000, 8, 2, b""), "has more than 89,478,485 pixels"),
    "a JPEG of as many": ("1.jpg", of_size(JPEG, (16, 24), (10000, 10000), ">HH"), "has more than 89,478,485 pixels"),
    "a GIF of as many": (
        "1.gif",
        of_size(encoded(COLOUR, "GIF"), (24, 16), (10000, 10000), "<HH"),
        "has more than 89,478,485 pixels",
    ),
    "a WebP of as many": (
        "1.webp",
        of_size(encoded(COLOUR, "WEBP"), (24, 16), (10000, 10000), "<HH"),
        "has more than 89,478,485 pixels",
    ),
    "a TIFF of as many": ("1.tif", tall_tiff(), "has more than 89,478,485 pixels"),
    "a page for Ghostscript": ("1.jpg", encoded(COLOUR, "EPS"), "is not an image"),
    "a pipe": ("1.jpg", None, "is not a regular file"),
    "floating point": ("1.tif", encoded(Image.new("F", (2, 2)), "TIFF"), "its pixels are floating point numbers"),
    "32 bits": ("1.tif", encoded(Image.new("I", (2, 2), 70000), "TIFF"), "its pixels have more than 16 bits"),
    "a TIFF's first bytes": ("1.tif", b"II*\0\x08\0\0\0", "is not an image"),
}


def make(file: Path, content: bytes | None) -> None:
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)


@pytest.mark.parametrize("case", READ)
def test_a_sound_file_is_read_right(case: str, tmp_path: Path) -> None:
    name, content, corners = READ[case]
    (tmp_path / name).write_bytes(content)
    image = open_image(tmp_path / name)
    assert (image.mode, image.size) == ("RGB", (24, 16))
    shown = [image.getpixel(place) for place in ((3, 3), (20, 3), (3, 12), (20, 12))]
    np.testing.assert_allclose(shown, corners, atol=4)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line(case: str, tmp_path: Path) -> None:
    name, content, said = BROKEN[case]
    make(tmp_path / name, content)
    with pytest.raises(UserError, match=said) as caught:
        open_image(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "remove it from the data set" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_verify_lists_all_broken_files_at_once(tmp_path: Path) -> None:
    for number, (name, content, _) in enumerate([*READ.values(), *BROKEN.values()]):
        file = tmp_path / f"class {number:02d}" / name
        file.parent.mkdir()
        make(file, content)
    report = ImageFolder(tmp_path).verify()
    assert (report.num_classes, report.num_samples) == (len(READ) + len(BROKEN),) * 2
    assert len(report.problems) == len(BROKEN)
    for number, problem in enumerate(report.problems, start=len(READ)):
        assert problem.startswith(str(tmp_path / f"class {number:02d}"))


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def broken_annotations(root: Path) -> None:
    file = cars196_pooled(root) / "cars_annos.mat"
    file.write_bytes(file.read_bytes()[:2000])


def annotations_without(field: str) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        folder = cars196_pooled(root)
        kept = [name for name in ("relative_im_path", "class") if name != field]
        savemat(folder / "cars_annos.mat", {"annotations": structs(kept, [(1,)]), "class_names": cells(["a"])})

    return build


LAYOUTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no folder": ("cub200", lambda root: None, r"no folder .*cub200"),
    "CUB: unpacked a folder too deep": (
        "cub200",
        lambda root: cub200(root / "cub200" / "CUB_200_2011"),
        r"cannot read .*cub200/CUB_200_2011/images\.txt \(No such file or directory\): .*levelfield data prepare",
    ),
    "CUB: a list is missing": (
        "cub200",
        lambda root: (cub200(root) / "classes.txt").unlink(),
        r"cannot read .*classes\.txt \(No such file",
    ),
    "CUB: a column too many": (
        "cub200",
        lambda root: change(cub200(root) / "images.txt", "3 001", "3 7 001"),
        r"images\.txt: '3 7 001.*' instead of image_id \(a whole number\), path",
    ),
    "CUB: a number that is none": (
        "cub200",
        lambda root: change(cub200(root) / "image_class_labels.txt", "5 2", "5 two"),
        r"image_class_labels\.txt: '5 two'",
    ),
    "CUB: an image without a class": (
        "cub200",
        lambda root: change(cub200(root) / "image_class_labels.txt", "5 2\n", ""),
        r"image_class_labels\.txt has no class for image 5 of .*images\.txt",
    ),
    "CUB: a class without a name": (
        "cub200",
        lambda root: change(cub200(root) / "classes.txt", "4 004.Bird_3\n", ""),
        r"classes\.txt does not name class 4 of image 13",
    ),
    "CUB: an image twice": (
        "cub200",
        lambda root: change(cub200(root) / "images.txt", "Bird_0_0001_1.jpg", "Bird_0_0000_0.jpg"),
        r"images\.txt names .*Bird_0_0000_0\.jpg 2 times",
    ),
    "CUB: a list that is not UTF-8": (
        "cub200",
        lambda root: (cub200(root) / "classes.txt").write_bytes(b"1 001.Jay\n2 002.Gar\xe7a\n"),
        r"classes\.txt is not text in UTF-8",
    ),
    "Cars: nothing of it": ("cars196", lambda root: (root / "cars196").mkdir(), r"has neither cars_annos\.mat"),
    "Cars: half a MATLAB file": ("cars196", broken_annotations, r"cars_annos\.mat is not a complete MATLAB file"),
    "Cars: no field of classes": ("cars196", annotations_without("class"), r"annotations have no field class"),
    "Cars: no field of paths": (
        "cars196",
        annotations_without("relative_im_path"),
        r"annotations have no field relative_im_path",
    ),
    "Cars: a class that has no name": (
        "cars196",
        lambda root: savemat(cars196_parts(root) / "devkit/cars_meta.mat", {"class_names": cells(["a", "b"])}),
        r"an image of class 3, and names of 2 classes",
    ),
    "Cars: annotations without names": (
        "cars196",
        lambda root: savemat(cars196_parts(root) / "devkit/cars_meta.mat", {"other": 1}),
        r"cars_meta\.mat has no variable class_names",
    ),
    "SOP: the test list is missing": (
        "sop",
        lambda root: (sop(root) / "Ebay_test.txt").unlink(),
        r"cannot read .*Ebay_test\.txt",
    ),
    "SOP: a column is missing": (
        "sop",
        lambda root: change(sop(root) / "Ebay_train.txt", "2 1 1 bicycle", "2 1 bicycle"),
        r"Ebay_train\.txt: '2 1 bicycle",
    ),
    "In-shop: the partition is missing": (
        "inshop",
        lambda root: inshop(root).unlink(),
        r"cannot read .*list_eval_partition\.txt",
    ),
    "In-shop: the number in its first row is wrong": (
        "inshop",
        lambda root: change(inshop(root), "64\n", "65\n"),
        r"list_eval_partition\.txt: row 1 announces 65 images, but 64",
    ),
    "In-shop: another status": (
        "inshop",
        lambda root: change(inshop(root), "query", "probe"),
        r"list_eval_partition\.txt: probe of img/.* is not train, query or gallery",
    ),
    "Dogs: the high-resolution folder": (
        "dogs130",
        lambda root: (dogs130(root) / "low-resolution").rename(root / "dogs130" / "high-resolution"),
        r"no folder .*dogs130/low-resolution",
    ),
    "Dogs: no breeds in it": (
        "dogs130",
        lambda root: (root / "dogs130" / "low-resolution").mkdir(parents=True),
        r"low-resolution has no folders",
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_wrong_layout_is_one_line(case: str, tmp_path: Path) -> None:
    name, build, said = LAYOUTS[case]
    build(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        named_datasets()[name](root=tmp_path).read_index()  # type: ignore[call-arg]
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


MISSING: dict[str, tuple[Callable[[Path], Path], str]] = {
    "cub200": (cub200, "images/002.Bird_1/Bird_1_0001_5.jpg"),
    "cars196": (cars196_parts, "cars_test/00003.jpg"),
    "sop": (sop, "chair_final/110001_1.JPG"),
    "inshop": (lambda root: inshop(root).parents[1] / "Img", "img/WOMEN/Dresses/id_00000002/02_1_front.jpg"),
}


@pytest.mark.parametrize("name", MISSING)
def test_verify_names_an_image_that_is_listed_and_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, image = MISSING[name]
    folder = build(tmp_path)
    (folder / image).unlink()
    kind = named_datasets()[name]
    monkeypatch.setattr(kind, "num_classes_published", 17)
    monkeypatch.setattr(kind, "num_samples_published", 65)
    problems = kind(root=tmp_path).verify().problems  # type: ignore[call-arg]
    assert problems[:2] == ["16 classes instead of 17", "64 samples instead of 65"]
    assert problems[2].startswith(f"cannot read {folder / image} (No such file or directory): restore the file")
    assert len(problems) == 3


@pytest.mark.parametrize("variant", ["CRLF", "BOM", "no last newline", "blank lines", "tabs"])
@pytest.mark.parametrize("name", ["cub200", "sop", "inshop"])
def test_lists_as_other_programs_save_them(name: str, variant: str, tmp_path: Path) -> None:
    {"cub200": cub200, "sop": sop, "inshop": inshop}[name](tmp_path)
    dataset = named_datasets()[name](root=tmp_path)  # type: ignore[call-arg]
    before = dataset.read_index()
    for file in (tmp_path / name).rglob("*.txt"):
        content = file.read_bytes()
        file.write_bytes(
            {
                "CRLF": content.replace(b"\n", b"\r\n"),
                "BOM": b"\xef\xbb\xbf" + content,
                "no last newline": content.rstrip(b"\n"),
                "blank lines": content + b"\n  \n",
                "tabs": content.replace(b" ", b"\t"),
            }[variant]
        )
    after = dataset.read_index()
    assert after.keys == before.keys
    assert after.class_names == before.class_names
    assert after.labels.tolist() == before.labels.tolist()


def test_gaps_in_a_column_of_labels(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("path,label\na.jpg,3\nb.jpg,900\nc.jpg,3\n")
    index = ImageTable(table).read_index()
    assert (index.labels.tolist(), index.class_names) == ([0, 1, 0], ("3", "900"))  # numbers may leave some out
    table.write_text("path,label\na.jpg,3\nb.jpg,\nc.jpg,3\n")
    with pytest.raises(UserError, match=rf"{table}, row 3: label is empty; fill it in or remove the row"):
        ImageTable(table).read_index()
