"""`benchmarks/large.py` on few rows: every step is there, and what it makes can be read."""

from pathlib import Path

import pytest
from benchmark_module import benchmark_module

large = benchmark_module("large")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(large, "BATCHES", 3)


@pytest.mark.parametrize("kind", ["path", "text"])
def test_the_steps_of_a_table(kind: str, tmp_path: Path) -> None:
    large.make_table(tmp_path / "t.parquet", 20_000, kind)
    steps = large.draw_batches(tmp_path / "t.parquet", kind).rows
    assert tuple(steps) == large.STEPS
    assert all(cpu >= 0 and wall >= 0 and peak > 10 for cpu, wall, peak in steps.values())
