import math

import pytest
import torch
from regularizer_cases import points, same_as_loop, unit

from levelfield.regularizers import Uniformity


def loop(x, t):
    u = [unit(row) for row in x]
    pairs = [(i, j) for i in range(len(u)) for j in range(len(u)) if i != j]
    return torch.log(sum(torch.exp(-t * (u[i] - u[j]).square().sum()) for i, j in pairs) / len(pairs))


@pytest.mark.parametrize(("number", "dim"), [(2, 3), (13, 5), (6, 40)])
@pytest.mark.parametrize("t", [2.0, 0.3])
def test_equals_the_equation(number, dim, t):
    x = points(number, dim).requires_grad_()
    same_as_loop(Uniformity(t=t)(x), loop(x, t), x)


def test_by_hand():
    """Two opposite points: a squared distance of 4. Points that coincide: log 1."""
    assert float(Uniformity(t=2.0)(torch.tensor([[3.0, 0], [-1, 0]]))) == pytest.approx(-8)
    assert float(Uniformity()(torch.full((5, 4), 0.7))) == pytest.approx(0, abs=1e-5)


def test_is_least_for_points_that_are_spread():
    angles = torch.arange(8) * math.pi / 4
    spread = torch.stack([angles.cos(), angles.sin()], 1)
    assert Uniformity()(spread) < Uniformity()(points(8, 2).float())
