import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_same, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import SmoothAPLoss, soft_ranks


def loop(case, temperature):
    def above(x):
        return 1 / (1 + (-x / temperature).exp())

    losses = []
    for i in range(len(case.y)):
        positives, negatives = sorted(set(case.P[i])), sorted(set(case.N[i]))
        if not positives:
            continue
        precision = 0.0
        for p in positives:
            same = 1 + sum(above(case.s(i, q) - case.s(i, p)) for q in positives if q != p)
            precision = precision + same / (same + sum(above(case.s(i, n) - case.s(i, p)) for n in negatives))
        losses.append(1 - precision / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.01, 0.2])
def test_equals_the_equation(situation, temperature):
    assert_equals_loop(SmoothAPLoss(temperature), lambda case: loop(case, temperature), batch(situation))


@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_equals_pytorch_metric_learning_which_counts_the_anchor_as_a_positive(temperature):
    case = batch("raw", [7, 7, 7, 2, 2, 2, 5, 5, 5])  # it takes classes of one size alone
    value = SmoothAPLoss(temperature)(case.x, case.y, None, case.x, case.y)
    assert_same(value, peers.SmoothAPLoss(temperature)(case.x, case.y), case.x, value=1e-5, gradient=1e-4)


def test_a_cold_sigmoid_gives_the_average_precision_by_hand():
    """Of one anchor's cosines .9, .8, .7, .6 the second and the fourth are positives: AP = (1/2 + 2/4) / 2."""
    cosines = torch.tensor([[0.9, 0.8, 0.7, 0.6]], dtype=torch.float64)
    positives = torch.tensor([[0.0, 1, 0, 1]], dtype=torch.float64)
    loss = SmoothAPLoss(1e-4).pair_loss(cosines, positives, 1 - positives)
    assert loss == pytest.approx(1 - (1 / 2 + 2 / 4) / 2)


def test_some_rows_at_a_time_give_what_all_do(monkeypatch):
    case = batch("raw")
    value = SmoothAPLoss(0.1)(case.x, case.y)
    (gradient,) = torch.autograd.grad(value, case.x)
    monkeypatch.setattr(soft_ranks, "CACHED_VALUES", 100)
    again = SmoothAPLoss(0.1)(case.x, case.y)
    torch.testing.assert_close(again, value)
    torch.testing.assert_close(torch.autograd.grad(again, case.x)[0], gradient)
