import math

import pytest
import torch
from loss_cases import (
    CLASS_SITUATIONS,
    assert_equals_loop,
    assert_equals_peer,
    class_batch,
    classification_loop,
    degrees,
)
from pytorch_metric_learning import losses as peers

from levelfield.losses import ArcFaceLoss, SubCenterArcFaceLoss


def loop(case, weights, sub_centers, margin, scale):
    def logits(i):
        out = []
        for c in range(len(weights) // sub_centers):
            centers = weights[c * sub_centers : (c + 1) * sub_centers]
            cos = torch.stack([case.u(i) @ (w / w.norm()) for w in centers]).max()
            if c == int(case.y[i]):
                theta = torch.acos(cos)
                inside = theta <= math.pi - degrees(margin)
                turned = torch.cos(theta + degrees(margin))
                cos = turned if inside else cos - degrees(margin) * math.sin(degrees(margin))
            out.append(scale * cos)
        return out

    return classification_loop(case, logits)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("sub_centers", [1, 3])
def test_equals_the_equation(situation, sub_centers):
    loss = SubCenterArcFaceLoss(6, 5, sub_centers, margin=60, scale=20).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, sub_centers, 60, 20), class_batch(situation), weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss = SubCenterArcFaceLoss(6, 5).double()
    peer = peers.SubCenterArcFaceLoss(num_classes=6, embedding_size=5).double()
    peer.W.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_with_one_centre_it_is_arcface():
    ours, arcface = SubCenterArcFaceLoss(6, 5, sub_centers=1).double(), ArcFaceLoss(6, 5).double()
    ours.load_state_dict(arcface.state_dict())
    case = class_batch("raw")
    torch.testing.assert_close(ours(case.x, case.y), arcface(case.x, case.y))


def test_outliers_are_those_of_the_peer():
    loss = SubCenterArcFaceLoss(3, 4, sub_centers=2).double()
    peer = peers.SubCenterArcFaceLoss(num_classes=3, embedding_size=4, sub_centers=2).double()
    peer.W.data = loss.class_weights.data.T.clone()
    x = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    outliers, centers = loss.get_outliers(x, y)
    their_outliers, their_centers = peer.get_outliers(x, y)
    assert 0 < len(outliers) < 60
    assert sorted(outliers.tolist()) == sorted(their_outliers.tolist())
    torch.testing.assert_close(centers, their_centers.T)
