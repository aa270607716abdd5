import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, classification_loop
from pytorch_metric_learning import losses as peers

from levelfield.losses import CosFaceLoss


def loop(case, weights, margin, scale):
    def logits(i):
        own = int(case.y[i])
        return [scale * (case.u(i) @ (w / w.norm()) - margin * (c == own)) for c, w in enumerate(weights)]

    return classification_loop(case, logits)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("arguments", [(0.35, 64.0), (0.1, 5.0)])
def test_equals_the_equation(situation, arguments):
    loss = CosFaceLoss(6, 5, *arguments).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, *arguments), class_batch(situation), weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = CosFaceLoss(6, 5).double(), peers.CosFaceLoss(6, 5).double()
    peer.W.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_a_larger_margin_is_a_larger_loss():
    case = class_batch("raw")
    values = []
    for margin in (0.0, 0.2, 0.5):
        torch.manual_seed(0)
        values.append(float(CosFaceLoss(6, 5, margin).double()(case.x, case.y).detach()))
    assert values[0] < values[1] < values[2]
