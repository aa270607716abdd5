"""Parts that trainings share are those that each would have built, and the generator goes on as if it had."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageFolder
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


class OwnTrunk(TimmTrunk):
    pass


def test_parts_of_ones_own_are_built_each_time() -> None:
    kept = KeptParts()
    assert built(lambda: kept.trunk(OwnTrunk, TINY), 3)[0] is not built(lambda: kept.trunk(OwnTrunk, TINY), 3)[0]


def test_a_list_of_samples_is_read_anew_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(kept_parts.time, "monotonic", lambda: now[0])
    for number in range(16):
        (tmp_path / f"class{number:02d}").mkdir()
        for sample in range(2):
            Image.new("RGB", (8, 8), (number, sample, 0)).save(tmp_path / f"class{number:02d}" / f"{sample}.png")
    kept = KeptParts()

    def fingerprint() -> str:
        return MetricDataModule(kept.dataset(ImageFolder, {"folder": str(tmp_path)})).identity()["fingerprint"]

    before = fingerprint()
    (tmp_path / "class00" / "0.png").rename(tmp_path / "class00" / "2.png")
    after = MetricDataModule(ImageFolder(str(tmp_path))).identity()["fingerprint"]
    now[0] = 59.0
    assert fingerprint() == before != after
    now[0] = 61.0
    assert fingerprint() == after
