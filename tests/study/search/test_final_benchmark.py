"""`benchmarks/final.py`: what simulated searches choose, against numbers that follow from its definition."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
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


def test_without_noise_a_search_chooses_the_best_that_it_tried(benchmark: ModuleType) -> None:
    two = benchmark.Searched("two settings", np.array([0.0, 1.0]), noise=0.0)
    for final in (0, 2):
        # One of N - k trials is the better setting with probability 1 - 2^-(N - k).
        gap, below = benchmark.outcome(two, trainings=4, final=final)
        missed = 0.5 ** (4 - final)
        assert below == pytest.approx(missed, abs=0.01)
        assert gap == pytest.approx(2 * missed * (1 - missed), abs=0.01)


def test_a_second_look_helps_where_noise_decides(benchmark: ModuleType) -> None:
    """Two settings, one better by a standard deviation of the noise, each tried often: averages of two tell more."""
    noisy = benchmark.Searched("noisy", np.array([0.0, 0.01]), noise=0.01)
    plain, final = (benchmark.outcome(noisy, trainings=20, final=final)[1] for final in (0, 5))
    assert final < plain


def test_the_process_takes_noise_off_a_line(benchmark: ModuleType) -> None:
    from levelfield.study.search.space import read_space

    space = read_space({"a": {"low": 0.0, "high": 1.0}}, "test")
    places = np.linspace(0, 1, 40)
    values = places + 0.2 * np.random.default_rng(0).standard_normal(40)
    found = benchmark.smoothed(space, [{"a": place} for place in places], values, noise=0.2)
    assert np.abs(found - places).mean() < np.abs(values - places).mean() / 2


def test_a_study_gives_a_row_a_searched_method(benchmark: ModuleType, finished: Path) -> None:
    found = list(benchmark.of_study(StudyRecord.begun(finished)))
    assert [searched.name for searched in found] == ["toy contrastive", "toy arcface"]
    assert all(len(searched.true) == 3 and searched.noise > 0 for searched in found)
