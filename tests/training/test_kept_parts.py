"""Parts that trainings share are those that each would have built, and the generator goes on as if it had."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageFolder, TextTable
from levelfield.models import TimmTrunk
from levelfield.training import kept_parts
from levelfield.training.kept_parts import KeptParts

TINY: dict[str, Any] = {"name": "test_resnet", "weights": None}


def built(build: Any, seed: int) -> tuple[TimmTrunk, torch.Tensor]:
    """A trunk, and what is drawn after it."""
    torch.manual_seed(seed)
    return build(), torch.rand(4)


def test_a_kept_trunk_is_the_one_that_would_be_built() -> None:
    kept = KeptParts()
    for seed in (3, 3, 4, 3):
        expected, expected_draw = built(lambda: TimmTrunk(**TINY), seed)
        found, draw = built(lambda: kept.trunk(TimmTrunk, TINY), seed)
        assert torch.equal(draw, expected_draw)
        state = found.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in expected.state_dict().items())


def test_a_trunk_is_built_anew_where_it_is_another_or_has_changed() -> None:
    kept = KeptParts()
    first, _ = built(lambda: kept.trunk(TimmTrunk, TINY), 3)
    assert built(lambda: kept.trunk(TimmTrunk, TINY), 3)[0] is first
    assert built(lambda: kept.trunk(TimmTrunk, TINY), 4)[0] is not first
    second, _ = built(lambda: kept.trunk(TimmTrunk, {**TINY, "mean": [0.0, 0.0, 0.0]}), 4)
    assert second.mean == (0.0, 0.0, 0.0)
    with torch.no_grad():
        next(second.parameters()).add_(1)
    assert built(lambda: kept.trunk(TimmTrunk, {**TINY, "mean": [0.0, 0.0, 0.0]}), 4)[0] is not second
    assert built(lambda: kept.trunk(OwnTrunk, TINY), 3)[0] is not built(lambda: kept.trunk(OwnTrunk, TINY), 3)[0]


class OwnTrunk(TimmTrunk):
    pass


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two images of the same size in bytes in each of 20 classes, in a folder inside the class folder."""
    for number in range(20):
        (tmp_path / f"class{number:02d}" / "inside").mkdir(parents=True)
        for sample in range(2):
            image = Image.new("RGB", (8, 8), (number, sample, 0))
            image.save(tmp_path / f"class{number:02d}" / "inside" / f"{sample}.bmp")
    return tmp_path


def fingerprint(dataset: ImageFolder) -> str:
    return MetricDataModule(dataset).identity()["fingerprint"]


def test_a_new_file_is_found_after_a_minute(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(kept_parts.time, "monotonic", lambda: now[0])
    kept, given = KeptParts(), {"folder": str(images)}
    before = fingerprint(kept.dataset(ImageFolder, given))
    Image.new("RGB", (8, 8)).save(images / "class00" / "inside" / "2.bmp")
    after = fingerprint(ImageFolder(images))
    now[0] = 59.0
    assert fingerprint(kept.dataset(ImageFolder, given)) == before != after
    now[0] = 61.0
    assert fingerprint(kept.dataset(ImageFolder, given)) == after


def overwrite(folder: Path) -> None:
    """Other pixels, with the size and the modification time of those before."""
    file = folder / "class02" / "inside" / "0.bmp"
    before = file.stat()
    Image.new("RGB", (8, 8), "red").save(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


CHANGES: dict[str, Callable[[Path], Any]] = {
    "overwritten": overwrite,
    "a new image": lambda folder: Image.new("RGB", (8, 8)).save(folder / "class00" / "0.bmp"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_ends_a_kept_list_at_once(change: str, images: Path) -> None:
    kept, given = KeptParts(), {"folder": str(images)}
    first = kept.dataset(ImageFolder, given)
    before = fingerprint(first)
    assert kept.dataset(ImageFolder, given) is first
    CHANGES[change](images)
    assert fingerprint(kept.dataset(ImageFolder, given)) == fingerprint(ImageFolder(images)) != before


def test_a_changed_table_ends_a_kept_list_at_once(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text,label\n" + "".join(f"hello {n},{n // 2:02d}\n" for n in range(40)))
    kept, given = KeptParts(), {"table": str(table)}
    before = fingerprint(kept.dataset(TextTable, given))
    table.write_text(table.read_text().replace("hello 3,01", "hello 3,00"))
    assert fingerprint(kept.dataset(TextTable, given)) == fingerprint(TextTable(table)) != before
