"""Scores on another set, with intervals over classes."""

import numpy as np
import pytest
import torch
from own_images import own_images
from refused import succeeded
from statsmodels.api import OLS

import levelfield
from levelfield.metrics import clustering_metrics, retrieval_metrics
from levelfield.use.transfer import class_interval, scores_of


def test_the_command_scores_another_set(fitted, tmp_path, run):
    """tests/test_evaluations_counted.py has its lines in the ledger."""
    best, table = fitted / "best.ckpt", own_images(tmp_path)
    embedded = levelfield.embed(best, table)
    printed = succeeded(run("score", "--ckpt_path", best, "--data", table))
    assert "16 classes, 64 samples" in printed
    assert "other names than these 16" in printed
    labels = torch.tensor([int(label.removeprefix("class ")) for label in embedded.labels])
    expected = retrieval_metrics(embedded.embeddings, labels)
    (line,) = [line for line in printed.splitlines() if line.startswith("  MAP@R")]
    assert float(line.split()[1]) == pytest.approx(100 * expected["map_at_r"], abs=0.051)
    assert "±" in line


@pytest.mark.parametrize("num_classes", [3, 12])
def test_the_interval_is_that_of_a_regression_with_clusters(num_classes: int) -> None:
    """A regression on a constant, whose errors are correlated within classes alone."""
    draw = np.random.default_rng(num_classes)
    labels = np.repeat(np.arange(num_classes), draw.integers(1, 9, num_classes))
    scores = draw.normal(size=num_classes)[labels] + draw.normal(size=len(labels))
    fit = OLS(scores, np.ones(len(scores))).fit(cov_type="cluster", cov_kwds={"groups": labels}, use_t=True)
    found = class_interval(torch.tensor(scores), torch.tensor(labels))
    assert fit.params[0] - found == pytest.approx(fit.conf_int()[0, 0])
    assert class_interval(torch.tensor([0.1, 0.2, 0.4]), torch.tensor([5, 5, 9])) is None, "two classes have none"


def test_the_scores_are_those_of_the_metrics() -> None:
    embeddings, labels, is_query = torch.randn(60, 8), torch.arange(60) % 7, torch.arange(60) < 20
    scores, skipped = scores_of(embeddings, labels, is_query, "euclidean")
    asked = embeddings[is_query], labels[is_query], embeddings[~is_query], labels[~is_query]
    expected = retrieval_metrics(*asked, distance="euclidean") | clustering_metrics(embeddings, labels)
    assert skipped == expected.pop("num_skipped") == 0
    assert {metric: score.value for metric, score in scores.items()} == pytest.approx(expected)
