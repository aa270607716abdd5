"""Losses that are each other in disguise, in float64."""

import pytest
import torch
from loss_cases import batch, class_batch

from levelfield.losses import (
    ArcFaceLoss,
    ContrastiveLoss,
    CosFaceLoss,
    MarginLoss,
    NormalizedSoftmaxLoss,
    NTXentLoss,
    ProxyNCALoss,
    SoftNearestNeighborLoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
    SupConLoss,
)


def alike(first, second):
    first, second = first.double(), second.double()
    second.load_state_dict(first.state_dict())
    case = class_batch("raw")
    torch.testing.assert_close(first(case.x, case.y), second(case.x, case.y), rtol=1e-12, atol=0)


@pytest.mark.parametrize("k", [0.5, 1.0, 10.0])
def test_proxy_nca_is_the_normalised_softmax(k):
    alike(ProxyNCALoss(6, 5, k), NormalizedSoftmaxLoss(6, 5, temperature=1 / (2 * k)))


@pytest.mark.parametrize(
    "other",
    [
        CosFaceLoss(6, 5, margin=0, scale=25),
        ArcFaceLoss(6, 5, margin=0, scale=25),
        SubCenterArcFaceLoss(6, 5, sub_centers=1, margin=0, scale=25),
        SoftTripleLoss(6, 5, centers_per_class=1, la=25, margin=0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_without_a_margin_they_are_the_normalised_softmax(other):
    alike(NormalizedSoftmaxLoss(6, 5, temperature=1 / 25), other)


def test_with_two_samples_a_class_three_losses_are_one():
    case = batch("raw", labels=[0, 0, 1, 1, 2, 2, 3, 3])
    expected = NTXentLoss(0.2)(case.x, case.y)
    torch.testing.assert_close(SoftNearestNeighborLoss(0.2)(case.x, case.y), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(SupConLoss(0.2)(case.x, case.y), expected, rtol=1e-12, atol=0)


def test_the_margin_loss_of_pairs_has_the_terms_of_the_contrastive_loss():
    case = batch("raw")
    b, m = 1.1, 0.3
    matrix = torch.cdist(*[case.x / case.x.norm(dim=1, keepdim=True)] * 2)
    same = case.y[:, None] == case.y[None, :]
    positive = same & ~torch.eye(len(case.y), dtype=torch.bool)
    active_pull = int((matrix[positive] > b - m).sum())
    active_push = int((matrix[~same] < b + m).sum())
    pull = ContrastiveLoss(b - m, -1.0)(case.x, case.y) * active_pull
    push = ContrastiveLoss(9.0, b + m)(case.x, case.y) * active_push
    margin = MarginLoss(m, beta=b, pairs=True)(case.x, case.y)
    torch.testing.assert_close(margin, (pull + push) / (active_pull + active_push), rtol=1e-12, atol=0)
