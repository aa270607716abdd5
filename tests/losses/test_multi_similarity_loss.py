import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import MultiSimilarityLoss


def loop(case, alpha, beta, base):
    rows = []
    for i in range(len(case.y)):
        pull = sum((-alpha * (case.s(i, p) - base)).exp() for p in set(case.P[i]))
        push = sum((beta * (case.s(i, n) - base)).exp() for n in set(case.N[i]))
        rows.append(torch.log1p(torch.as_tensor(pull)) / alpha + torch.log1p(torch.as_tensor(push)) / beta)
    return sum(rows) / len(rows)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [(2.0, 50.0, 0.5), (0.01, 40.0, 0.8), (20.0, 3.0, 0.0)])
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(MultiSimilarityLoss(*arguments), lambda case: loop(case, *arguments), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(MultiSimilarityLoss(), peers.MultiSimilarityLoss(), batch(situation))


def test_alpha_near_zero_pulls_each_positive_alike():
    """(1/a) log(1 + sum exp(-a (s - l))) = log(1 + #P)/a - (1/(1 + #P)) sum (s - l) + O(a)."""
    case = batch("raw", labels=[0, 0, 0])
    alpha = 1e-6
    loss = MultiSimilarityLoss(alpha=alpha, base=0.5)(case.x, case.y)
    pull = -sum(case.s(i, p) - 0.5 for i in range(3) for p in case.P[i]) / 3 / 3
    torch.testing.assert_close(loss - torch.tensor(3.0, dtype=torch.float64).log() / alpha, pull, rtol=0, atol=1e-5)


def test_anchors_without_positives_stay_in_the_mean():
    case = batch("raw", labels=[0, 1])
    expected = (1 + (50 * (case.s(0, 1) - 0.5)).exp()).log() / 50
    torch.testing.assert_close(MultiSimilarityLoss()(case.x, case.y), expected)
