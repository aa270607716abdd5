"""Scores with intervals over classes: the library's metrics, and a variance that knows the classes."""

import numpy as np
import pytest
import torch
from scipy import stats

from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.use.scores import class_interval, scores_of


@pytest.mark.parametrize("num_classes", [3, 12])
def test_the_interval_is_that_of_pairs_of_one_class(num_classes: int) -> None:
    """The variance of a mean whose errors are correlated within classes alone: the sum of all pairs' products."""
    draw = np.random.default_rng(num_classes)
    labels = np.repeat(np.arange(num_classes), draw.integers(1, 9, num_classes))
    scores = draw.normal(size=num_classes)[labels] + draw.normal(size=len(labels))
    errors = scores - scores.mean()
    pairs = sum(errors[i] * errors[j] for i, j in np.argwhere(labels[:, None] == labels))
    variance = pairs / len(scores) ** 2 * num_classes / (num_classes - 1)
    half = stats.t(num_classes - 1).ppf(0.975) * variance**0.5
    assert class_interval(torch.tensor(scores), torch.tensor(labels)) == pytest.approx(half)


def test_it_covers_the_mean_of_all_classes_in_95_of_100_draws() -> None:
    draw, covered = np.random.default_rng(0), 0
    for _ in range(400):
        labels = np.repeat(np.arange(20), 5)
        scores = draw.normal(size=20)[labels] + draw.normal(size=100)
        covered += abs(scores.mean()) < class_interval(torch.tensor(scores), torch.tensor(labels))
    assert 0.92 < covered / 400 < 0.98


def test_two_classes_have_no_interval() -> None:
    assert class_interval(torch.tensor([0.1, 0.2, 0.4]), torch.tensor([5, 5, 9])) is None


def test_the_scores_are_those_of_the_metrics() -> None:
    embeddings, labels = torch.randn(60, 8), torch.arange(60) % 7
    scores, skipped = scores_of(embeddings, labels)
    expected = retrieval_metrics(embeddings, labels) | clustering_metrics(embeddings, labels)
    assert skipped == expected.pop("num_skipped") == 0
    assert {metric: score.value for metric, score in scores.items()} == pytest.approx(expected)
    is_query = torch.arange(60) < 20
    scores, _ = scores_of(embeddings, labels, is_query, "euclidean")
    asked = embeddings[is_query], labels[is_query], embeddings[~is_query], labels[~is_query]
    assert scores["map_at_r"].value == pytest.approx(retrieval_metrics(*asked, distance="euclidean")["map_at_r"])
