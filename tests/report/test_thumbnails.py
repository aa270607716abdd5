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
from levelfield.report.thumbnails import Thumbnails


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


def test_a_picture_is_there_once_within_its_square(samples: ScoredSamples) -> None:
    found = Thumbnails(samples)
    for position, side in ((2, 64), (2, 32), (0, 32)):
        found.add(position, side)
    rules = re.findall(r"\.s(\d)\{background-image:url\(data:image/webp;base64,([^)]+)\)\}", found.style)
    sizes = {int(number): Image.open(io.BytesIO(base64.b64decode(content))).size for number, content in rules}
    assert sizes == {0: (32, 16), 2: (64, 32)}
    assert found.left_out == 0


def test_what_does_not_fit_or_cannot_be_opened_is_counted(
    samples: ScoredSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pictures/class0/0.png").write_bytes(b"no picture")
    whole = Thumbnails(samples)
    for position in range(4):
        whole.add(position, 48)
    assert (len(whole.rules), whole.left_out) == (3, 1)
    monkeypatch.setattr(thumbnails, "MOST_BYTES", len(whole.style.splitlines()[0]))
    full = Thumbnails(samples)
    for position in range(1, 4):
        full.add(position, 48)
    assert len(full.style) <= thumbnails.MOST_BYTES
    assert (len(full.rules), full.left_out) == (1, 2)
