import math

import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, classification_loop
from pytorch_metric_learning import losses as peers

from levelfield.losses import SphereFaceLoss


def loop(case, weights, margin, scale):
    def logits(i):
        out = []
        for c, w in enumerate(weights):
            cos = case.u(i) @ (w / w.norm())
            if c == int(case.y[i]):
                theta = torch.acos(cos)
                k = int(margin * theta / math.pi)
                cos = (-1) ** k * torch.cos(margin * theta) - 2 * k
            out.append(scale * case.x[i].norm() * cos)
        return out

    return classification_loop(case, logits)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("arguments", [(4, 1.0), (3, 30.0), (1, 5.0)])
def test_equals_the_equation(situation, arguments):
    loss = SphereFaceLoss(6, 5, *arguments).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, *arguments), class_batch(situation), weights)


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # the peer's constructor
@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = SphereFaceLoss(6, 5).double(), peers.SphereFaceLoss(6, 5).double()
    peer.W.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_psi_falls_from_1_to_minus_7_without_a_jump():
    loss = SphereFaceLoss(1, 2).double()
    angles = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    psi = loss.logits(angles.cos()[:, None], torch.zeros(1001, dtype=torch.long))[:, 0]
    assert psi[0] == pytest.approx(1)
    assert psi[-1] == pytest.approx(-7)
    steps = psi.diff()
    assert (steps < 1e-12).all()
    assert (steps > -0.02).all()


def test_a_margin_that_is_no_whole_number_is_refused():
    with pytest.raises(ValueError, match=r"margin=1.5 multiplies the angle"):
        SphereFaceLoss(3, 2, margin=1.5)
