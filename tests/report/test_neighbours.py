"""Neighbours and chosen queries, against loops over float64 and answers known by hand."""

import numpy as np
import torch

from levelfield.metrics import retrieval_metrics
from levelfield.report.retrieval import Retrieval
from levelfield.study.test_scores import EmbeddedTest
from levelfield.training.embed import EmbeddedSet

LABELS = torch.arange(60) % 6
GENERATOR = np.random.default_rng(5)
POINTS = GENERATOR.normal(size=(6, 8))[LABELS] + 0.8 * GENERATOR.normal(size=(60, 8))
SAMPLES = EmbeddedSet(torch.tensor(POINTS, dtype=torch.float32), LABELS, torch.arange(60))


def test_nearest_is_what_a_loop_finds() -> None:
    """Without queries of their own, tests/report/test_page.py has it."""
    is_query, queries = torch.arange(60) % 4 == 0, [0, 8, 44]
    unit = POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True)
    gallery = [number for number in range(60) if number % 4]
    expected = [sorted(gallery, key=lambda each: -float(unit[query] @ unit[each]))[:5] for query in queries]
    assert Retrieval(EmbeddedTest(SAMPLES, is_query, "data")).nearest(queries, 5).tolist() == expected


def test_the_best_are_better_than_the_median_and_these_than_the_worst() -> None:
    scores = retrieval_metrics(SAMPLES.embeddings, LABELS, metrics=("map_at_r",), per_query=True)["map_at_r"]
    found = Retrieval(EmbeddedTest(SAMPLES, None, "data")).examples(3)
    of = {group: [float(scores[query]) for query in queries] for group, queries in found.items()}
    assert {group: len(queries) for group, queries in of.items()} == {"best": 3, "median": 3, "worst": 3}
    assert max(of["best"]) == float(scores.max())
    assert max(of["worst"]) < min(of["median"]) < min(of["best"])
    assert min(of["worst"]) == float(scores.min())
    assert all(len({int(LABELS[query]) for query in queries}) == 3 for queries in found.values()), "of three classes"
    assert len({query for queries in found.values() for query in queries}) == 9
