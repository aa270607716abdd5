import math

import pytest
import torch
from regularizer_cases import points, same_as_loop, unit

from levelfield.regularizers import KoLeo


def loop(x):
    u = [unit(row) for row in x]
    nearest = [min((u[i] - u[j]).square().sum().sqrt() for j in range(len(u)) if j != i) for i in range(len(u))]
    return -sum(torch.log(distance) for distance in nearest) / len(u)


@pytest.mark.parametrize(("number", "dim"), [(2, 3), (13, 5), (6, 40)])
def test_equals_the_equation(number, dim):
    x = points(number, dim).requires_grad_()
    same_as_loop(KoLeo()(x), loop(x), x)


def test_by_hand_on_a_circle():
    """Four points at right angles: each is sqrt(2) from its nearest."""
    cross = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    assert float(KoLeo()(5 * cross)) == pytest.approx(-math.log(2) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_that_coincide_are_finite_and_the_others_still_move(dtype):
    """A repeat, exact or off by rounding, has no gradient of its own; log 0 would be infinite, 1/0 its slope."""
    x = points(6, 8).to(dtype)
    x[1] = x[0]
    x[3] = x[2] * (1 + 2 * torch.finfo(dtype).eps)
    x.requires_grad_()
    value = KoLeo()(x)
    value.backward()
    floor = 16 * torch.finfo(torch.float32).eps if dtype == torch.float32 else 64 * torch.finfo(torch.float64).eps
    u = [unit(row) for row in x.detach().double()]
    apart = [-math.log(min((u[i] - u[j]).norm() for j in range(6) if j != i)) for i in (4, 5)]
    assert value.isfinite()
    assert value.item() == pytest.approx((4 * -0.5 * math.log(floor) + sum(apart)) / 6, rel=1e-5)
    assert x.grad.isfinite().all()
    assert (x.grad[4:] != 0).any(1).all()


def test_a_gradient_is_never_above_what_is_said():
    """Of vectors as near as counts, 1 / sqrt(16 eps) = 725 for a pair that are each other's nearest."""
    x = torch.zeros(2, 64)
    x[:, 0], x[1, 1] = 1, 1.45e-3
    x.requires_grad_()
    KoLeo()(x).backward()
    assert 100 < x.grad.norm(dim=1).max() <= 725 * 2 / 2


def test_a_step_spreads_the_nearest():
    x = points(8, 4).requires_grad_()
    before = KoLeo()(x)
    before.backward()
    assert KoLeo()(x - 1e-3 * x.grad) < before
