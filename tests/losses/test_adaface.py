import math

import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, classification_loop
from pytorch_metric_learning import losses as peers

from levelfield.losses import AdaFaceLoss, ArcFaceLoss
from levelfield.numerics import unit


def loop(case, weights, m, scale, h, mean, std):
    def logits(i):
        z = float(((case.x[i].detach().norm() - mean) / (std + 0.001) * h).clamp(-1, 1))
        out = []
        for c, w in enumerate(weights):
            cos = case.u(i) @ (w / w.norm())
            if c == int(case.y[i]):
                cos = torch.cos((torch.acos(cos) - m * z).clamp(0, math.pi)) - (m * z + m)
            out.append(scale * cos)
        return out

    return classification_loop(case, logits)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("arguments", [(0.4, 64.0, 0.333), (0.9, 10.0, 2.0)])
def test_equals_the_equation(situation, arguments):
    loss = AdaFaceLoss(6, 5, *arguments).double()
    case = class_batch(situation)
    norms = case.x.detach().norm(dim=1)
    weights = loss.class_weights
    assert_equals_loop(loss, lambda c: loop(c, weights, *arguments, norms.mean(), norms.std()), case, weights)


def test_mean_and_deviation_of_the_norms_run_over_the_batches_in_training_alone():
    loss = AdaFaceLoss(6, 5, momentum=0.9).double()
    mean = std = None
    for seed in range(3):
        case = class_batch("raw", seed=seed)
        norms = case.x.detach().norm(dim=1)
        now = norms.mean(), norms.std()
        mean, std = now if mean is None else (0.9 * mean + 0.1 * now[0], 0.9 * std + 0.1 * now[1])
        value = loss(case.x, case.y)
    expected = loop(case, loss.class_weights, 0.4, 64.0, 0.333, mean, std)
    torch.testing.assert_close(value, expected)
    loss.eval()
    torch.testing.assert_close(loss(case.x, case.y), expected)
    again = AdaFaceLoss(6, 5).double().eval()
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(case.x, case.y), expected)
    broken = case.x.detach().clone()
    broken[0, 0] = torch.inf
    loss.train()
    assert not loss(broken, case.y).isfinite()
    torch.testing.assert_close(loss.eval()(case.x, case.y), expected)


def test_norms_that_are_equal_give_cosface():
    loss, peer = AdaFaceLoss(6, 5, 0.35, 64).double(), peers.CosFaceLoss(6, 5, margin=0.35, scale=64).double()
    peer.W.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch("unit"))


def test_norms_far_below_the_mean_give_arcface():
    loss, arc = AdaFaceLoss(6, 5, 0.35, 20).double(), ArcFaceLoss(6, 5, math.degrees(0.35), 20).double()
    arc.load_state_dict({"class_weights": loss.class_weights.data.clone()})
    x, y = unit(loss.class_weights.detach() + 0.3), torch.arange(6)
    loss(1000 * torch.cat([x, 1.001 * x]), y.repeat(2))
    loss.eval()
    torch.testing.assert_close(loss(x, y), arc(x, y))


def test_its_gradient_is_the_finite_difference_where_the_quality_stands_still(monkeypatch):
    case = class_batch("raw")
    loss = AdaFaceLoss(6, 5, scale=10.0).double()
    loss(case.x, case.y)
    z = loss.quality(case.x)
    monkeypatch.setattr(loss, "quality", lambda _: z)
    inputs = [case.x.detach().requires_grad_(), loss.class_weights]
    assert torch.autograd.gradcheck(lambda x, _: loss(x, case.y), inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x, _: loss(x, case.y), inputs, fast_mode=True)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="momentum=1 lie in"):
        AdaFaceLoss(3, 2, momentum=1)
