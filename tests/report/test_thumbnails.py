"""Thumbnails: small, whole, each once, and no more than fit."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from levelfield.data.datasets import ImageFolder
from levelfield.report import thumbnails
from levelfield.report.scored_samples import ScoredSamples


@pytest.fixture
def samples(tmp_path: Path) -> ScoredSamples:
    for number in range(4):
        folder = tmp_path / "pictures" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (90, 180, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    dataset = ImageFolder(folder=str(tmp_path / "pictures"))
    index = dataset.read_index()
    return ScoredSamples(dataset, index, index.class_names)


def test_a_picture_is_within_its_square(samples: ScoredSamples) -> None:
    found, left_out = thumbnails.thumbnails(samples, (0, 2))
    rules = re.findall(r"\.s(\d)\{background-image:url\(data:image/webp;base64,([^)]+)\)\}", "\n".join(found))
    sizes = {int(number): Image.open(io.BytesIO(base64.b64decode(content))).size for number, content in rules}
    side = thumbnails.SIDE
    assert sizes == dict.fromkeys((0, 2), (side, side // 2))  # of 180 x 90 pixels
    assert left_out == 0


def test_what_does_not_fit_or_cannot_be_opened_is_counted(
    samples: ScoredSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pictures/class0/0.png").write_bytes(b"no picture")
    whole, left_out = thumbnails.thumbnails(samples, range(4))
    assert (len(whole), left_out) == (3, 1)
    monkeypatch.setattr(thumbnails, "MOST_BYTES", len(whole[0]))
    some, left_out = thumbnails.thumbnails(samples, range(1, 4))
    assert (len(some), left_out) == (1, 2)
