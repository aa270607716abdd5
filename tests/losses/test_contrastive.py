import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, nonzero_mean, value_and_gradients
from pytorch_metric_learning import losses as peers

from levelfield.losses import ContrastiveLoss


def loop(case, pos_margin=0.0, neg_margin=1.0, power=1):
    pulls = [(case.d(i, p) - pos_margin).clamp_min(0) ** power for i, row in enumerate(case.P) for p in row]
    pushes = [(neg_margin - case.d(i, n)).clamp_min(0) ** power for i, row in enumerate(case.N) for n in row]
    return nonzero_mean(pulls) + nonzero_mean(pushes)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("margins", [(0.0, 1.0), (0.9, 1.2), (-0.2, 0.5)])
@pytest.mark.parametrize("power", [1, 2])
def test_equals_the_equation(situation, margins, power):
    loss = ContrastiveLoss(*margins, hinge_power=power)
    assert_equals_loop(loss, lambda case: loop(case, *margins, power), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(ContrastiveLoss(0.3, 1.1), peers.ContrastiveLoss(0.3, 1.1), batch(situation))


def test_a_tuple_of_one_pair_each_counts_where_the_peer_returns_zero():
    case = batch("raw")
    case.chosen = tuple(torch.tensor([k]) for k in (0, 1, 0, 4))
    case.__post_init__()
    assert peers.ContrastiveLoss(0, 2)(*case.arguments()) == 0
    torch.testing.assert_close(ContrastiveLoss(0, 2)(*case.arguments()), loop(case, 0, 2))


def test_a_negative_positive_margin_changes_the_value_and_not_the_gradient():
    case = batch("raw")
    value, (gradient,) = value_and_gradients(ContrastiveLoss(0.0)(case.x, case.y), case.x)
    shifted, (same,) = value_and_gradients(ContrastiveLoss(-0.2)(case.x, case.y), case.x)
    torch.testing.assert_close(shifted, value + 0.2)
    torch.testing.assert_close(same, gradient)


def test_the_two_means_are_separate():
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])  # one positive pair at sqrt(2), no active negative
    labels = torch.tensor([0, 0, 1])
    torch.testing.assert_close(ContrastiveLoss(0, 1)(points, labels), torch.tensor(2.0).sqrt())
    mixed = ContrastiveLoss(0, 2)(points, labels)  # (1,2) and (2,1) at sqrt(2); (0,2) and (2,0) at 2 are not active
    torch.testing.assert_close(mixed, torch.tensor(2.0**0.5 + 2 - 2**0.5))
    assert ContrastiveLoss(2, 0)(points, labels) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 128])
def test_pairs_that_coincide_are_not_active(dtype, dim):
    """Half of the positive pairs are duplicates: the mean is over the other half."""
    directions = torch.nn.functional.normalize(torch.randn(3, dim, generator=torch.Generator().manual_seed(1)), dim=1)
    points = directions[[0, 0, 1, 2]].to(dtype)
    apart = (points[2] - points[3]).double().norm()
    loss = ContrastiveLoss(neg_margin=0.0)(points, torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(loss.double(), apart, rtol=1e-5, atol=0)
