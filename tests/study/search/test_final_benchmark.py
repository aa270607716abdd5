"""`benchmarks/final.py` finds what simulated searches draw from in a study's folder."""

from pathlib import Path
from types import ModuleType

import pytest
from benchmark_module import benchmark_module

from levelfield.study.record import StudyRecord


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return benchmark_module("final")


def test_a_study_gives_a_row_a_searched_method(benchmark: ModuleType, finished: Path) -> None:
    found = list(benchmark.of_study(StudyRecord.begun(finished)))
    assert [searched.name for searched in found] == ["toy contrastive", "toy arcface"]
    assert all(len(searched.true) == 3 and searched.noise > 0 for searched in found)
