"""A method that ranks by bits is validated and tested by the signs of its embeddings."""

import pytest
import torch
from torch.nn.functional import normalize

from levelfield.losses import ContrastiveLoss
from levelfield.metrics import RetrievalMetrics, retrieval_metrics
from levelfield.models import TimmTrunk
from levelfield.study.test_scores import score_samples
from levelfield.training.learner import MetricLearner


@pytest.mark.parametrize("queries", [False, True])
def test_bits_rank_as_the_cosine_of_signs_does(queries: bool) -> None:
    """Of unit vectors of signs the cosine is 1 - 2 x share of differing signs.

    In 16 dimensions their entries are 1/4, and equal cosines are equal numbers on any processor.
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (60, 16), generator=generator).float().mul(2).sub(1)
    embeddings = signs * torch.rand(60, 16, generator=generator).add(0.1)
    labels = torch.arange(60) % 12
    is_query = torch.arange(60) % 5 == 0 if queries else None
    found = score_samples(embeddings, labels, is_query, "hamming")
    if is_query is None:
        expected = retrieval_metrics(normalize(signs), labels)
    else:
        expected = retrieval_metrics(normalize(signs[is_query]), labels[is_query], signs[~is_query], labels[~is_query])
    assert found["map_at_r"] == pytest.approx(expected["map_at_r"])
    assert found["map_at_r"] != pytest.approx(score_samples(embeddings, labels, is_query)["map_at_r"], abs=1e-3)

    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), loss=ContrastiveLoss(), distance="hamming")
    metric = RetrievalMetrics(
        num_samples=60, distance=learner.distance, is_query=None if is_query is None else is_query.numpy()
    )
    metric.update(embeddings, labels, torch.arange(60))
    assert metric.compute()["map_at_r"] == pytest.approx(expected["map_at_r"])
