"""Parts that trainings share are those that each would have built, and the generator goes on as if it had."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageFolder
from levelfield.models import TimmTrunk
from levelfield.training import shared_parts
from levelfield.training.shared_parts import SharedParts

TINY: dict[str, Any] = {"name": "test_resnet", "weights": None}


def built(build: Any, seed: int) -> tuple[TimmTrunk, torch.Tensor]:
    """A trunk, and what is drawn after it."""
    torch.manual_seed(seed)
    return build(), torch.rand(4)


def test_a_kept_trunk_is_the_one_that_would_be_built() -> None:
    kept = SharedParts()
    for seed in (3, 3, 4, 3):
        expected, expected_draw = built(lambda: TimmTrunk(**TINY), seed)
        found, draw = built(lambda: kept.trunk(TimmTrunk, TINY), seed)
        assert torch.equal(draw, expected_draw)
        state = found.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in expected.state_dict().items())


def test_a_trunk_is_built_anew_where_it_is_another_or_has_changed() -> None:
    kept, other = SharedParts(), {**TINY, "mean": [0.0, 0.0, 0.0]}
    first, _ = built(lambda: kept.trunk(TimmTrunk, TINY), 3)
    assert built(lambda: kept.trunk(TimmTrunk, TINY), 3)[0] is first
    assert built(lambda: kept.trunk(TimmTrunk, TINY), 4)[0] is not first
    second, _ = built(lambda: kept.trunk(TimmTrunk, other), 4)
    assert second.mean == (0.0, 0.0, 0.0)
    with torch.no_grad():
        next(second.parameters()).add_(1)
    assert built(lambda: kept.trunk(TimmTrunk, other), 4)[0] is not second


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two images of the same size in bytes in each of 20 classes, in a folder inside the class folder."""
    for number in range(20):
        (place := tmp_path / f"class{number:02d}" / "inside").mkdir(parents=True)
        for sample in range(2):
            Image.new("RGB", (8, 8), (number, sample, 0)).save(place / f"{sample}.bmp")
    return tmp_path


def fingerprint(dataset: ImageFolder) -> str:
    return MetricDataModule(dataset).identity()["fingerprint"]


def test_a_new_file_is_found_after_a_minute(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(shared_parts.time, "monotonic", lambda: now[0])
    kept, given = SharedParts(), {"folder": str(images)}
    before = fingerprint(kept.dataset(ImageFolder, given))
    Image.new("RGB", (8, 8)).save(images / "class00" / "inside" / "2.bmp")
    after = fingerprint(ImageFolder(images))
    now[0] = 59.0
    assert fingerprint(kept.dataset(ImageFolder, given)) == before != after
    now[0] = 61.0
    assert fingerprint(kept.dataset(ImageFolder, given)) == after


def test_an_overwritten_file_ends_a_kept_list_at_once(images: Path) -> None:
    """Other pixels, with the size and the modification time of those before."""
    kept, given = SharedParts(), {"folder": str(images)}
    first = kept.dataset(ImageFolder, given)
    before = fingerprint(first)
    assert kept.dataset(ImageFolder, given) is first
    file = images / "class02" / "inside" / "0.bmp"
    stat = file.stat()
    Image.new("RGB", (8, 8), "red").save(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(kept.dataset(ImageFolder, given)) == fingerprint(ImageFolder(images)) != before
