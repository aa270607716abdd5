"""The search on the Reality Check's recorded curves of one argument: how near it comes to their best."""

import json
import statistics
from types import ModuleType

import numpy as np
import pytest
from benchmark_module import benchmark_module
from deletable import PAPERS, needs

pytestmark = needs(PAPERS)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """`benchmarks/search.py`, whose table the docs show."""
    return benchmark_module("search")


def test_the_recorded_curves_are_the_published_searches(benchmark: ModuleType) -> None:
    from papers.published import searches

    records, curves = json.loads(benchmark.CURVES.read_text())["curves"], benchmark.recorded_curves()
    by_key = {(each["loss"], each["dataset"], each["batch_size"]): each for each in searches()}
    assert len(records) == 9
    for record, curve in zip(records, curves, strict=True):
        search = by_key[record["loss"], record["dataset"], record["batch_size"]]
        assert len(record["tried"]) == len(record["val_map_at_r"]) == 50
        assert curve.best == pytest.approx(search["val_map_at_r"], abs=1e-9)
        assert curve.value(search["optimum"]) == pytest.approx(curve.best, abs=1e-6)
        assert (np.diff(curve.positions) > 0).all()
    # Half way between two recorded temperatures in the logarithm, half way between their scores.
    curve = next(curve for curve in curves if curve.name == "cub200 256 ntxent")
    record = next(record for record in records if (record["loss"], record["batch_size"]) == ("ntxent", 256))
    (low, high), scores = record["tried"][10:12], record["val_map_at_r"][10:12]
    assert curve.value({"temperature": (low * high) ** 0.5}) == pytest.approx(sum(scores) / 2, abs=1e-9)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_and_thirty_trials_come_near_the_best_of_all_curves(benchmark: ModuleType) -> None:
    scores = {
        sampler: [benchmark.reached(curve, 20, sampler) for curve in benchmark.recorded_curves()]
        for sampler in ("gp", "random")
    }
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in scores.items()}
    assert medians["gp"][0] >= 0.97
    assert medians["gp"][1] >= 0.995
    assert medians["gp"][1] > medians["random"][1]
