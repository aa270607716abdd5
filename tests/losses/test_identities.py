"""Losses that are each other in disguise, in float64."""

import pytest
import torch
from loss_cases import batch, class_batch

from levelfield import losses


@pytest.mark.parametrize(
    ("name", "arguments", "temperature"),
    [
        *(("ProxyNCALoss", {"softmax_scale": k}, 1 / (2 * k)) for k in (0.5, 10.0)),
        ("CosFaceLoss", {"margin": 0, "scale": 25}, 1 / 25),
        ("ArcFaceLoss", {"margin": 0, "scale": 25}, 1 / 25),
        ("SubCenterArcFaceLoss", {"sub_centers": 1, "margin": 0, "scale": 25}, 1 / 25),
        ("SoftTripleLoss", {"centers_per_class": 1, "la": 25, "margin": 0}, 1 / 25),
    ],
)
def test_without_a_margin_they_are_the_normalised_softmax(name, arguments, temperature):
    plain = losses.NormalizedSoftmaxLoss(6, 5, temperature).double()
    other = getattr(losses, name)(6, 5, **arguments).double()
    other.load_state_dict(plain.state_dict())
    case = class_batch("raw")
    torch.testing.assert_close(other(case.x, case.y), plain(case.x, case.y), rtol=1e-12, atol=0)


def test_with_two_samples_a_class_three_losses_are_one():
    case = batch("raw", labels=[0, 0, 1, 1, 2, 2, 3, 3])
    expected = losses.NTXentLoss(0.2)(case.x, case.y)
    for loss in (losses.SoftNearestNeighborLoss(0.2), losses.SupConLoss(0.2)):
        torch.testing.assert_close(loss(case.x, case.y), expected, rtol=1e-12, atol=0)


def test_the_margin_loss_of_pairs_has_the_terms_of_the_contrastive_loss():
    case, b, m = batch("raw"), 1.1, 0.3
    matrix = torch.cdist(*[case.x / case.x.norm(dim=1, keepdim=True)] * 2)
    same = case.y[:, None] == case.y[None, :]
    pulls = int((matrix[same & ~torch.eye(len(case.y), dtype=torch.bool)] > b - m).sum())
    pushes = int((matrix[~same] < b + m).sum())
    pull = losses.ContrastiveLoss(b - m, -1.0)(case.x, case.y) * pulls
    push = losses.ContrastiveLoss(9.0, b + m)(case.x, case.y) * pushes
    margin = losses.MarginLoss(m, beta=b, pairs=True)(case.x, case.y)
    torch.testing.assert_close(margin, (pull + push) / (pulls + pushes), rtol=1e-12, atol=0)
