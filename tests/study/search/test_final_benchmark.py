"""`benchmarks/final.py` finds what simulated searches draw from in a study's folder."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from levelfield.study.record import StudyRecord


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "final.py"
    spec = importlib.util.spec_from_file_location("benchmarks_final", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_study_gives_a_row_a_searched_method(benchmark: ModuleType, finished: Path) -> None:
    found = list(benchmark.of_study(StudyRecord.begun(finished)))
    assert [searched.name for searched in found] == ["toy contrastive", "toy arcface"]
    assert all(len(searched.true) == 3 and searched.noise > 0 for searched in found)
