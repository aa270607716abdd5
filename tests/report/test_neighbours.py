"""Neighbours and chosen queries, against loops over float64 and answers known by hand."""

import numpy as np
import pytest
import torch

from levelfield.metrics import retrieval_metrics
from levelfield.report.retrieval import Retrieval
from levelfield.study.test_scores import EmbeddedTest
from levelfield.training.embed import EmbeddedSet


def embedded(points: np.ndarray, labels: list[int], is_query: list[bool] | None = None) -> EmbeddedTest:
    tensors = torch.tensor(points, dtype=torch.float32), torch.tensor(labels), torch.arange(len(labels))
    return EmbeddedTest(EmbeddedSet(*tensors), None if is_query is None else torch.tensor(is_query), "data")


@pytest.fixture
def random_points() -> tuple[np.ndarray, list[int]]:
    generator = np.random.default_rng(5)
    labels = [number % 6 for number in range(60)]
    centres = generator.normal(size=(6, 8))
    return centres[labels] + 0.8 * generator.normal(size=(60, 8)), labels


def looped(points: np.ndarray, query: int, gallery: list[int]) -> list[int]:
    unit = points.astype(np.float64) / np.linalg.norm(points, axis=1, keepdims=True)
    return sorted((each for each in gallery if each != query), key=lambda each: -float(unit[query] @ unit[each]))


@pytest.mark.parametrize("with_queries", [False, True])
def test_nearest_is_what_a_loop_finds(with_queries: bool, random_points: tuple[np.ndarray, list[int]]) -> None:
    points, labels = random_points
    is_query = [number % 4 == 0 for number in range(60)] if with_queries else None
    gallery = [n for n in range(60) if is_query is None or not is_query[n]]
    retrieval = Retrieval(embedded(points, labels, is_query))
    queries = [0, 8, 44]
    assert retrieval.nearest(queries, 5).tolist() == [looped(points, query, gallery)[:5] for query in queries]


def test_the_best_are_better_than_the_median_and_these_than_the_worst(random_points):
    points, labels = random_points
    scores = retrieval_metrics(
        torch.tensor(points, dtype=torch.float32), torch.tensor(labels), metrics=("map_at_r",), per_query=True
    )["map_at_r"]
    found = Retrieval(embedded(points, labels)).examples(3)
    of = {group: [float(scores[query]) for query in queries] for group, queries in found.items()}
    assert {group: len(queries) for group, queries in of.items()} == {"best": 3, "median": 3, "worst": 3}
    assert max(of["best"]) == float(scores.max())
    assert max(of["worst"]) < min(of["median"]) < min(of["best"])
    assert min(of["worst"]) == float(scores.min())
    assert all(len({labels[query] for query in queries}) == 3 for queries in found.values()), "of three classes each"
    assert len({query for queries in found.values() for query in queries}) == 9
