import math

import pytest
import torch
from regularizer_cases import points, same_as_loop, unit

from levelfield.regularizers import AntiCollapse


def determinant(rows):
    """By expansion along the first row: of small matrices."""
    if len(rows) == 1:
        return rows[0][0]
    minors = [[row[:k] + row[k + 1 :] for row in rows[1:]] for k in range(len(rows))]
    return sum((-1) ** k * rows[0][k] * determinant(minors[k]) for k in range(len(rows)))


def loop(x, eps2):
    """I + D / (N eps2) sum_i u_i u_i^T, a number at a time."""
    u, (N, D) = [unit(row) for row in x], x.shape
    entry = [[D / (N * eps2) * sum(u[i][a] * u[i][b] for i in range(N)) + (a == b) for b in range(D)] for a in range(D)]
    return -0.5 * torch.log(determinant(entry))


@pytest.mark.parametrize(("number", "dim"), [(2, 3), (13, 4), (5, 5), (3, 6)])
@pytest.mark.parametrize("eps2", [0.5, 0.05])
def test_equals_the_equation(number, dim, eps2):
    """In D x D where samples are many, in N x N where they are few: one determinant."""
    x = points(number, dim).requires_grad_()
    same_as_loop(AntiCollapse(eps2=eps2)(x), loop(x, eps2), x)


def test_by_hand():
    """Samples along all D axes have D / 2 log(1 + 1/eps2); those along one, 1/2 log(1 + D/eps2)."""
    D = 16
    assert float(AntiCollapse()(torch.eye(D))) == pytest.approx(-D / 2 * math.log(1 + 2))
    assert float(AntiCollapse()(torch.eye(D)[:1].repeat(9, 1))) == pytest.approx(-0.5 * math.log(1 + 2 * D), rel=1e-5)


def test_float32_of_a_large_batch_is_that_of_float64():
    x = points(600, 128).float()
    assert float(AntiCollapse()(x)) == pytest.approx(float(AntiCollapse()(x.double())), rel=1e-5)
