import math

import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, batch

from levelfield.losses import HyperbolicCrossEntropyLoss, NTXentLoss

C, R = 0.1, 2.3  # the paper's


def point(x):
    """Clipped, then mapped at the origin."""
    v = x * (R / x.norm()).clamp(max=1)
    return torch.tanh(math.sqrt(C) * v.norm()) * v / (math.sqrt(C) * v.norm())


def distance(x, y):
    if torch.equal(x, y):
        return torch.zeros((), dtype=torch.float64)
    u, z = -point(x), point(y)
    along, uu, zz = u @ z, u @ u, z @ z
    difference = ((1 + 2 * C * along + C * zz) * u + (1 - C * uu) * z) / (1 + 2 * C * along + C**2 * uu * zz)
    return 2 / math.sqrt(C) * torch.atanh(math.sqrt(C) * difference.norm())


def loop(case, temperature):
    losses = []
    for i in range(len(case.y)):
        against = [torch.exp(-distance(case.x[i], case.others[n]) / temperature) for n in case.N[i]]
        for p in case.P[i]:
            near = torch.exp(-distance(case.x[i], case.others[p]) / temperature)
            losses.append(-torch.log(near / (near + sum(against))))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_equals_the_equation(situation, temperature):
    assert_equals_loop(HyperbolicCrossEntropyLoss(temperature), lambda c: loop(c, temperature), batch(situation))


def test_two_samples_a_class_give_the_papers_sum_over_all_others():
    case = batch("unit", [0, 0, 1, 1, 2, 2, 3, 3])
    logits = torch.stack([torch.stack([-distance(x, y) / 0.2 for y in case.x]) for x in case.x])
    logits = logits.masked_fill(torch.eye(8, dtype=torch.bool), -torch.inf)
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(8).view(4, 2).flip(1).flatten())
    torch.testing.assert_close(HyperbolicCrossEntropyLoss()(case.x, case.y), expected)


def test_near_the_middle_of_the_ball_it_is_flat():
    """There D is twice the Euclidean distance."""
    x = 1e-3 * torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(8) // 2
    flat = NTXentLoss(1e-3).pair_loss(-2 * torch.cdist(x, x), *masks(y))
    torch.testing.assert_close(HyperbolicCrossEntropyLoss(1e-3)(x, y), flat, rtol=1e-5, atol=0)


def masks(labels):
    same = (labels[:, None] == labels[None]).double()
    return same - torch.eye(len(labels), dtype=torch.float64), 1 - same
