"""The Poincare distance of retrieval is that of Moebius addition, and ranks so."""

import math

import pytest
import torch

from levelfield.core.numerics import CLIP_RADIUS, CURVATURE, in_ball
from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.distances import DISTANCES


def embedding_space(num_items=120, num_classes=20):
    """Of all norms, below and beyond what is clipped."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_items) % num_classes
    centers = torch.randn(num_classes, 6, generator=generator)[labels]
    spread = torch.randn(num_items, 6, generator=generator)
    return (centers + spread) * torch.rand(num_items, 1, generator=generator) * 2, labels


def mobius(embeddings):
    """All distances in float64, of the ball of curvature c."""
    x, c = embeddings.double(), CURVATURE
    norms = x.norm(dim=1, keepdim=True)
    v = x * (CLIP_RADIUS / norms).clamp(max=1)
    z = (math.sqrt(c) * v.norm(dim=1, keepdim=True)).tanh() * v / (math.sqrt(c) * v.norm(dim=1, keepdim=True))
    u, w = -z[:, None], z[None]
    along, uu, ww = (u * w).sum(2, keepdim=True), (u * u).sum(2, keepdim=True), (w * w).sum(2, keepdim=True)
    sums = ((1 + 2 * c * along + c * ww) * u + (1 - c * uu) * w) / (1 + 2 * c * along + c**2 * uu * ww)
    return 2 / math.sqrt(c) * (math.sqrt(c) * sums.norm(dim=2)).atanh()


def test_similarities_are_less_the_distance():
    embeddings, _ = embedding_space()
    prepare, similarity = DISTANCES["poincare"]
    points, in_loss = prepare(embeddings), in_ball(embeddings.double())
    for expected in (mobius(embeddings), poincare_distances(in_loss, in_loss)):
        torch.testing.assert_close(-similarity(points, points), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e200, 1e30, 1e6])
def test_beyond_the_clipping_radius_the_scale_changes_nothing(scale):
    embeddings, labels = embedding_space()
    unit = torch.nn.functional.normalize(embeddings.double())
    expected = retrieval_metrics(unit, labels, distance="cosine")
    assert retrieval_metrics(unit * scale, labels, distance="poincare") == pytest.approx(expected, abs=1e-9)
