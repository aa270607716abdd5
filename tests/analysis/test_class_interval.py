"""Intervals over classes against plain sorting: classes really removed, pairs fitted by least squares."""

import numpy as np
import pytest
import torch
from by_sorting import cosines, scores_by_sorting
from scipy.stats import t

from levelfield.analysis.class_interval import ClassScores, class_interval, class_scores, in_words, neighbours_needed
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.nearest import nearest


def made(seed: int, classes: int = 9, spread: float = 1.0, fewest: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and labels of classes of unequal sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(fewest, 7, classes)
    sizes[0] = max(sizes[0], 2)
    labels = np.repeat(np.arange(classes), sizes)
    points = rng.normal(size=(classes, 4))[labels] + spread * rng.normal(size=(len(labels), 4))
    return points / np.linalg.norm(points, axis=1, keepdims=True), labels


def ours(points: np.ndarray, labels: np.ndarray) -> ClassScores:
    rows = torch.tensor(points).float()
    _, items = nearest(rows, rows, neighbours_needed(labels), torch.arange(len(rows)))
    return class_scores(items.numpy(), 3 * labels + 1)


def by_sorting(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums, numbers and changes [removed, of class]."""

    def sums(kept: np.ndarray) -> np.ndarray:
        rows, of = torch.tensor(points[kept]), torch.tensor(labels[kept])
        scores = scores_by_sorting(cosines(rows), of, per_query=True)["map_at_r"]
        return np.bincount(of, scores.nan_to_num(), labels.max() + 1)

    whole, numbers, classes = sums(labels >= 0), np.bincount(labels), np.unique(labels)
    changes = [sums(labels != removed) - whole * (classes != removed) for removed in classes]
    return whole, numbers * (numbers > 1), np.array(changes)


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_classes_and_their_changes_without_each_other(seed: int) -> None:
    points, labels = made(seed)
    found, (sums, numbers, changes) = ours(points, labels), by_sorting(points, labels)
    assert found.sums_K == pytest.approx(sums)
    assert found.queries_K.tolist() == numbers.tolist()
    assert found.changes_KK.toarray() == pytest.approx(changes, abs=1e-12)
    score = retrieval_metrics(torch.tensor(points).float(), torch.tensor(labels), metrics=("map_at_r",))["map_at_r"]
    assert found.mean == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_is_that_of_its_definition(seed: int) -> None:
    (one, labels), (other, _) = made(seed, 10, fewest=4), made(seed, 10, spread=1.5, fewest=4)
    found = ours(one, labels) - ours(other, labels)
    (sums, numbers, changes), (less, _, changes_less) = (by_sorting(each, labels) for each in (one, other))
    sums, changes, k, total = sums - less, changes - changes_less, 10, numbers.sum()
    mean = sums.sum() / total
    fixed = k / (k - 1) * sum(((sums[i] - mean * numbers[i]) / total) ** 2 for i in range(k))
    left = [sum(sums[j] + changes[i, j] for j in range(k) if j != i) / (total - numbers[i]) for i in range(k)]
    jackknife = (k - 1) / k * sum((value - np.mean(left)) ** 2 for value in left)
    pairs = [(i, j) for i in range(k) for j in range(i + 1, k)]
    shares = [-k / total * (changes[i, j] + changes[j, i]) for i, j in pairs]
    design = np.array([[1.0, *(float(c in pair) for c in range(k))] for pair in pairs])
    residual = shares - design @ np.linalg.lstsq(design, shares, rcond=None)[0]
    twice = (residual**2).sum() / (k * (k - 3) / 2) * (k - 1) / (2 * k)
    assert found.variance() == pytest.approx(max(fixed, jackknife - twice))
    assert ClassScores(found.sums_K, found.queries_K).variance() == pytest.approx(fixed)
    interval = class_interval(found)
    half = t.ppf(0.975, (numbers > 0).sum() - 1) * np.sqrt(found.variance())
    assert (interval.low, interval.high, interval.needed) == pytest.approx((mean - half, mean + half, half))


ANSWERS = {
    "A is better than B by 10.6 points MAP@R [10.0, 11.2]": [0.1, 0.11, 0.12, 0.1, 0.1, 0.1, 0.12, 0.11, 0.1, 0.1],
    "B is better than A by 10.6 points MAP@R [10.0": [-0.1, -0.11, -0.12, -0.1, -0.1, -0.1, -0.12, -0.11, -0.1, -0.1],
    "cannot tell A from B with 10 unseen classes: +0.0 points MAP@R [-7.5, +7.5]; the difference": [0.1, -0.1] * 5,
    "cannot tell A from B by MAP@R: they differ in fewer than 6 classes": [0.1] * 5 + [0.0] * 5,
    "cannot tell A from B by MAP@R": [0.1, 0.2] * 3,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_there_are_three_answers(answer: str) -> None:
    found = class_interval(ClassScores(np.array(ANSWERS[answer]), np.ones(len(ANSWERS[answer]), int)))
    assert in_words(found, "A", "B").startswith(answer)
    assert found.is_better == answer.startswith("A is")
    assert (found.high < 0) == answer.startswith("B is")
    plural = in_words(found, "A", "the features")
    assert not found.high < 0 or plural.startswith("the features are better than A by 10.6")
