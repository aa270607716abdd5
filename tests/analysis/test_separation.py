"""The separation of same-class and other pairs, against scikit-learn's area under the curve."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from levelfield.analysis.separation import pair_similarities, separation


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
