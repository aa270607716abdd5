"""The map: the same for the same embeddings, and neighbours stay neighbours."""

import numpy as np
import torch
from sklearn.manifold import trustworthiness

from levelfield.analysis.embedding_map import MOST_POINTS, SIDE, drawn_for_map, map_identity, plane_map
from levelfield.study.sealed_test.scores import EmbeddedTest
from levelfield.training.embed import EmbeddedSet


def test_a_map_keeps_neighbours_and_is_the_same_each_time() -> None:
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(4), 20)
    points = generator.normal(size=(4, 6))[labels] * 3 + generator.normal(size=(80, 6))
    tensors = torch.tensor(points, dtype=torch.float32), torch.tensor(labels), torch.arange(80)
    embedded, drawn = EmbeddedTest(EmbeddedSet(*tensors), None, "data"), np.arange(80)
    plane = plane_map(embedded, drawn, "euclidean")
    assert plane == plane_map(embedded, drawn, "euclidean")
    assert min(map(min, plane)) >= 0
    assert max(map(max, plane)) <= SIDE
    assert trustworthiness(points, np.array(plane), n_neighbors=5) > 0.85
    turned = EmbeddedTest(EmbeddedSet(-tensors[0], *tensors[1:]), None, "data")
    assert map_identity(embedded, drawn, "cosine") != map_identity(turned, drawn, "cosine")


def test_a_map_has_as_many_samples_of_each_class_and_no_more_than_fit() -> None:
    labels = np.repeat(np.arange(41), 60)
    drawn = drawn_for_map(labels)
    assert np.bincount(labels[drawn]).tolist() == [MOST_POINTS // 41] * 41
    assert np.array_equal(drawn, np.unique(drawn))
    many = drawn_for_map(np.repeat(np.arange(900), 6))
    assert len(many) == MOST_POINTS
    assert set(np.bincount(many // 6)) == {0, 5}, "whole classes, five samples each"
    assert drawn_for_map(np.array([0, 0, 1, 1])).tolist() == [0, 1, 2, 3]
