"""Every kind of image file ends as the RGB picture it shows; every broken one as a line that names it."""

import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from levelfield.data.datasets.images import decode_image, image_formats, open_image
from levelfield.errors import UserError


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(content: bytes) -> np.ndarray:
    image = decode_image(content, "picture")
    assert image.mode == "RGB"
    return np.asarray(image)


RED = Image.new("RGB", (8, 6), (200, 20, 30))


def test_colour_files_keep_their_colour() -> None:
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        assert (pixels(encoded(RED, kind)) == (200, 20, 30)).all()
    assert abs(pixels(encoded(RED, "JPEG", quality=95)).astype(int) - (200, 20, 30)).max() < 6


def test_grey_one_bit_and_palette() -> None:
    assert (pixels(encoded(Image.new("L", (4, 4), 77), "PNG")) == 77).all()
    assert (pixels(encoded(Image.new("1", (4, 4), 1), "PNG")) == 255).all()
    palette = RED.convert("P", palette=Image.Palette.ADAPTIVE)
    for kind in ("PNG", "GIF"):
        assert abs(pixels(encoded(palette, kind)).astype(int) - (200, 20, 30)).max() < 3


def test_cmyk_jpeg() -> None:
    # Cyan 0, magenta 255, yellow 255, black 0 is red.
    content = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert abs(pixels(content).astype(int) - (255, 0, 0)).max() < 8


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    levels = np.array([[0, 257, 128 * 257, 65535]], dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        assert pixels(encoded(Image.fromarray(levels), kind))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_transparency_lies_on_white() -> None:
    assert (pixels(encoded(Image.new("RGBA", (4, 4), (9, 9, 9, 0)), "PNG")) == 255).all()
    assert (pixels(encoded(Image.new("LA", (4, 4), (0, 255)), "PNG")) == 0).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert (pixels(encoded(palette, "PNG", transparency=1)) == 255).all()
    assert (pixels(encoded(palette, "PNG", transparency=b"\xff\x00")) == 255).all()


def test_exif_orientation_turns_the_picture() -> None:
    lying = Image.new("RGB", (16, 8), "black")
    lying.paste("white", (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate 90 degrees clockwise to show": the left half comes to the top
    shown = pixels(encoded(lying, "JPEG", quality=95, exif=exif))
    assert shown.shape == (16, 8, 3)
    assert shown[:7].min() > 240
    assert shown[9:].max() < 15


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_truncated(kind: str, tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    content = encoded(noise, kind)
    for share in (0.3, 0.8):
        file = tmp_path / "half"
        file.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(UserError, match=f"{file} is not .*replace the file"):
            open_image(file)


def test_not_an_image_empty_or_missing(tmp_path: Path) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("I was saved as a web page")
    with pytest.raises(UserError, match=f"{text} is not an image"):
        open_image(text)
    empty = tmp_path / "empty.jpg"
    empty.touch()
    with pytest.raises(UserError, match=f"{empty} is empty"):
        open_image(empty)
    with pytest.raises(UserError, match=r"missing\.jpg .*No such file"):
        open_image(tmp_path / "missing.jpg")
    with pytest.raises(UserError, match="floating point"):
        decode_image(encoded(Image.new("F", (2, 2)), "TIFF"), "float.tif")


def test_decoding_shows_no_warning_twice() -> None:
    content = encoded(RED, "PNG")
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()  # Python's own rule: once for each place
        for _ in range(3):
            decode_image(content, "picture")
            warnings.warn("of another package", UserWarning, stacklevel=1)
    assert len(shown) == 1


def test_a_jpeg_is_tried_as_one_whatever_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    image_formats()
    monkeypatch.setattr(Image, "OPEN", dict(sorted(Image.OPEN.items(), key=lambda each: each[0] in ("JPEG", "PNG"))))
    assert [*Image.OPEN][-1] in ("JPEG", "PNG")
    tried = image_formats.__wrapped__()
    assert tried[0] == "JPEG"
    assert sorted(tried) == sorted(image_formats())
