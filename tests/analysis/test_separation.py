"""The separation of same-class and other pairs, against scikit-learn's area under the curve."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from levelfield.analysis.separation import MOST_SAMPLES, draw_samples, pair_similarities, separation


def test_separation_is_the_area_under_the_curve_of_all_pairs() -> None:
    generator = np.random.default_rng(2)
    labels = np.repeat(np.arange(5), 8)
    points = generator.normal(size=(5, 4))[labels] + generator.normal(size=(40, 4))
    same, other = pair_similarities(torch.tensor(points), labels)
    assert (len(same), len(other)) == (5 * 28, 40 * 39 // 2 - 5 * 28)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    pairs = [(a, b) for a in range(40) for b in range(a + 1, 40)]
    truth = [labels[a] == labels[b] for a, b in pairs]
    wanted = roc_auc_score(truth, [float(unit[a] @ unit[b]) for a, b in pairs])
    assert separation(same, other) == pytest.approx(wanted, abs=1e-6)
    assert separation(np.array([0.5, 0.2]), np.array([0.5, 0.1])) == pytest.approx((0.5 + 1 + 0 + 1) / 4)
    with pytest.raises(ValueError, match="0 pairs of one class and 2 of two"):
        separation(np.array([]), np.array([0.1, 0.2]))


def test_as_many_samples_of_each_class_and_no_more_than_fit() -> None:
    labels = np.repeat(np.arange(41), 60)
    drawn = draw_samples(labels)
    assert np.bincount(labels[drawn]).tolist() == [MOST_SAMPLES // 41] * 41
    assert np.array_equal(drawn, np.unique(drawn))
    many = draw_samples(np.repeat(np.arange(900), 6))
    assert len(many) == MOST_SAMPLES
    assert set(np.bincount(many // 6)) == {0, 5}, "whole classes, five samples each"
    assert draw_samples(np.array([0, 0, 1, 1])).tolist() == [0, 1, 2, 3]
