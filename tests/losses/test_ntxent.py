import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, value_and_gradients
from pytorch_metric_learning import losses as peers

from levelfield.losses import NTXentLoss


def loop(case, temperature):
    terms = []
    for i, row in enumerate(case.P):
        for p in row:
            logits = torch.stack([case.s(i, p), *(case.s(i, n) for n in case.N[i])]) / temperature
            terms.append(logits.logsumexp(0) - logits[0])
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.07, 1.0, 1e-4])
def test_equals_the_equation(situation, temperature):
    assert_equals_loop(NTXentLoss(temperature), lambda case: loop(case, temperature), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.07, 0.03])
def test_equals_pytorch_metric_learning(situation, temperature):
    assert_equals_peer(NTXentLoss(temperature), peers.NTXentLoss(temperature), batch(situation))


def test_below_a_temperature_of_0_02_the_peer_saturates_and_ours_is_exact():
    x = batch("unit", [0] * 4 + [1] * 4, seed=1).x.detach().float().requires_grad_()
    y = torch.tensor([0] * 4 + [1] * 4)
    value, (gradient,) = value_and_gradients(NTXentLoss(0.001)(x, y), x)
    peer_value, (peer_gradient,) = value_and_gradients(peers.NTXentLoss(0.001)(x, y), x)
    exact = loop(batch("unit", [0] * 4 + [1] * 4, seed=1), 0.001)
    assert float(value) == pytest.approx(float(exact.detach()), rel=1e-4)
    assert gradient.isfinite().all()
    assert peer_value < 0.7 * value  # its terms stop at 87.3
    assert peer_gradient.norm() < 0.7 * gradient.norm()


def test_the_floor_replays_the_saturation():
    """-log(p + 1e-20) cannot pass 46.05, and a pair that hopeless has next to no gradient."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]], requires_grad=True)
    y = torch.tensor([0, 0, 1])
    value, (gradient,) = value_and_gradients(NTXentLoss(0.001, probability_floor=1e-20)(x, y), x)
    assert float(value) == pytest.approx(46.05, abs=0.01)
    assert gradient.abs().max() < 1e-6
    case = batch("raw")
    p = torch.tensor(0.3, dtype=torch.float64)
    torch.testing.assert_close(
        NTXentLoss(0.5, probability_floor=1e-20)(case.x, case.y), loop(case, 0.5), rtol=1e-12, atol=0
    )
    assert p > 0
