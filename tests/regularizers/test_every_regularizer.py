"""Every regularizer against its equation, by hand and on borders; losses/test_every_loss.py has what all share."""

import math

import pytest
import torch
from pytorch_metric_learning.regularizers import CenterInvariantRegularizer, ZeroMeanRegularizer
from torch import Tensor

from levelfield import regularizers
from levelfield.regularizers import AntiCollapse, CenterInvariance, KoLeo, SphericalConstraint, Uniformity, ZeroMean

EVERY = {name: getattr(regularizers, name) for name in regularizers.__all__ if name != "Regularizer"}


def points(number: int, dim: int) -> Tensor:
    return 3 * torch.randn(number, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def unit(rows: Tensor) -> list[Tensor]:
    return [row / (row * row).sum().sqrt() for row in rows]


def mean(terms: list[Tensor]) -> Tensor:
    return sum(terms) / len(terms)


def anti_collapse(x, eps2):
    N, D = x.shape
    spread = D / (N * eps2) * sum(torch.outer(row, row) for row in unit(x))
    return -0.5 * torch.log(torch.linalg.det(torch.eye(D) + spread))


def center_invariance(x):
    squares = [(row * row).sum() for row in x]
    return mean([(square - mean(squares)) ** 2 / 4 for square in squares])


def koleo(x):
    u = unit(x)
    nearest = [min((u[i] - u[j]).square().sum().sqrt() for j in range(len(u)) if j != i) for i in range(len(u))]
    return -mean([torch.log(distance) for distance in nearest])


def spherical_constraint(x):
    norms = [(row * row).sum().sqrt() for row in x]
    return mean([(norm - mean(norms)) ** 2 for norm in norms])


def uniformity(x, t):
    u = unit(x)
    pairs = [(i, j) for i in range(len(u)) for j in range(len(u)) if i != j]
    return torch.log(mean([torch.exp(-t * (u[i] - u[j]).square().sum()) for i, j in pairs]))


def zero_mean(x):
    return mean([abs(sum(row)) for row in x])


@pytest.mark.parametrize(
    ("regularizer", "expected", "sizes"),
    [
        # In D x D where samples are many, in N x N where they are few: one determinant.
        *(
            (AntiCollapse(eps2=eps2), lambda x, eps2=eps2: anti_collapse(x, eps2), [(2, 3), (13, 4), (5, 5), (3, 6)])
            for eps2 in (0.5, 0.05)
        ),
        (CenterInvariance(), center_invariance, [(7, 5)]),
        (CenterInvariance(), CenterInvariantRegularizer(), [(7, 5)]),
        (KoLeo(), koleo, [(2, 3), (13, 5), (6, 40)]),
        (SphericalConstraint(), spherical_constraint, [(9, 5)]),
        # The deviations from a mean sum to 0, so that it may be a constant.
        (SphericalConstraint(), lambda x: (x.norm(dim=1) - x.norm(dim=1).mean().detach()).square().mean(), [(9, 5)]),
        *((Uniformity(t=t), lambda x, t=t: uniformity(x, t), [(2, 3), (13, 5), (6, 40)]) for t in (2.0, 0.3)),
        (ZeroMean(), zero_mean, [(7, 5)]),
        (ZeroMean(), ZeroMeanRegularizer(), [(7, 5)]),
    ],
)
def test_equals_the_equation_and_the_peer(regularizer, expected, sizes):
    for number, dim in sizes:
        x = points(number, dim).requires_grad_()
        ours, theirs = regularizer(x), expected(x)
        assert theirs.abs() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
        (slope,), (right,) = (torch.autograd.grad(each, x) for each in (ours, theirs))
        torch.testing.assert_close(slope, right, rtol=1e-10, atol=1e-10 * float(right.abs().max()))


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
    u = unit(x.detach().double())
    apart = [-math.log(min((u[i] - u[j]).norm() for j in range(6) if j != i)) for i in (4, 5)]
    assert value.item() == pytest.approx((4 * -0.5 * math.log(floor) + sum(apart)) / 6, rel=1e-5)
    assert x.grad.isfinite().all()
    assert (x.grad[4:] != 0).any(1).all()


@pytest.mark.parametrize("name", EVERY)
def test_what_is_no_batch_of_points_raises_one_line(name):
    for wrong in (torch.randn(4), torch.randn(0, 4), torch.randn(4, 0), torch.ones(4, 3, dtype=torch.long)):
        with pytest.raises(ValueError, match="takes a non-empty floating-point") as caught:
            EVERY[name]()(wrong)
        assert "\n" not in str(caught.value)


OUT_OF_RANGE = [
    *((name, "weight", value) for name in EVERY for value in (-0.1, float("nan"), float("inf"))),
    *[("Uniformity", "t", 0), ("AntiCollapse", "eps2", -1), ("AntiCollapse", "of", "x")],
]


@pytest.mark.parametrize(("name", "argument", "value"), OUT_OF_RANGE)
def test_an_argument_out_of_range_is_refused(name, argument, value):
    with pytest.raises(ValueError, match=argument):
        EVERY[name](**{argument: value})
