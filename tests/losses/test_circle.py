import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, nonzero_mean
from pytorch_metric_learning import losses as peers

from levelfield.losses import CircleLoss


def loop(case, m, gamma, frozen=None):
    """`frozen` is the case that the weights are taken from; by default this one, without gradient."""
    frozen = frozen or case
    rows = []
    for i in range(len(case.y)):
        if not case.P[i] or not case.N[i]:
            continue
        push = [gamma * (frozen.s(i, n).detach() + m).clamp_min(0) * (case.s(i, n) - m) for n in set(case.N[i])]
        pull = [gamma * (1 + m - frozen.s(i, p).detach()).clamp_min(0) * (1 - m - case.s(i, p)) for p in set(case.P[i])]
        rows.append(torch.nn.functional.softplus(torch.stack(push).logsumexp(0) + torch.stack(pull).logsumexp(0)))
    return nonzero_mean(rows)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [(0.4, 80.0), (0.25, 5.0)])
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(CircleLoss(*arguments), lambda case: loop(case, *arguments), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(CircleLoss(), peers.CircleLoss(), batch(situation))


def test_its_gradient_is_the_finite_difference_with_the_weights_frozen():
    """gradcheck of the loss itself fails by design: the weights are constants for the gradient."""
    case = batch("unit")
    (gradient,) = torch.autograd.grad(CircleLoss(0.4, 5.0)(case.x, case.y), case.x)
    direction = torch.randn(case.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = 1e-6
    moved = []
    for sign in (1, -1):
        other = batch("unit")
        other.x = (case.x + sign * step * direction).detach()
        moved.append(loop(other, 0.4, 5.0, frozen=case))
    torch.testing.assert_close((gradient * direction).sum(), (moved[0] - moved[1]) / (2 * step), rtol=1e-6, atol=1e-8)
