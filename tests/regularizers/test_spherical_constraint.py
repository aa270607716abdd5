import pytest
import torch
from regularizer_cases import points, same_as_loop

from levelfield.regularizers import SphericalConstraint


def loop(x):
    norms = [(row * row).sum().sqrt() for row in x]
    mean = sum(norms) / len(norms)
    return sum((norm - mean) ** 2 for norm in norms) / len(norms)


def test_equals_the_equation_whether_the_mean_is_a_constant_or_not():
    """The deviations from a mean sum to 0, so that it has no slope."""
    x = points(9, 5).requires_grad_()
    same_as_loop(SphericalConstraint()(x), loop(x), x)
    norms = x.norm(dim=1)
    same_as_loop(SphericalConstraint()(x), (norms - norms.mean().detach()).square().mean(), x)


def test_a_sphere_has_none():
    x = 3 * torch.nn.functional.normalize(points(9, 5))
    assert float(SphericalConstraint()(x)) == pytest.approx(0, abs=1e-12)
