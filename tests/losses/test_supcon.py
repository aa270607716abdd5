import math

import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, nonzero_mean
from pytorch_metric_learning import losses as peers

from levelfield.losses import SoftNearestNeighborLoss, SupConLoss


def loop(case, temperature):
    rows = []
    for i in range(len(case.y)):
        P, N = sorted(set(case.P[i])), sorted(set(case.N[i]))
        if P:
            everything = torch.stack([case.s(i, j) / temperature for j in P + N]).logsumexp(0)
            rows.append(-sum(case.s(i, p) / temperature - everything for p in P) / len(P))
    return nonzero_mean(rows)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_equals_the_equation(situation, temperature):
    assert_equals_loop(SupConLoss(temperature), lambda case: loop(case, temperature), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(SupConLoss(), peers.SupConLoss(), batch(situation))


def test_is_at_least_the_soft_nearest_neighbour_loss_plus_log_positives():
    """Jensen: the mean of logs is at most the log of the mean."""
    for seed in range(5):
        case = batch("raw", labels=[0] * 4 + [1] * 4 + [2] * 4, seed=seed)
        bound = SoftNearestNeighborLoss(0.1)(case.x, case.y) + math.log(3)
        assert SupConLoss(0.1)(case.x, case.y) >= bound


def test_anchors_without_positives_are_left_out():
    case = batch("raw", labels=[0, 0, 1])
    rows = [torch.stack([case.s(i, j) for j in range(3) if j != i]).div(0.1) for i in range(2)]
    expected = sum(row.logsumexp(0) - row[0] for row in rows) / 2
    torch.testing.assert_close(SupConLoss()(case.x, case.y), expected)
