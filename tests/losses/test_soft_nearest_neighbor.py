import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import SoftNearestNeighborLoss


def loop(case, temperature):
    rows = []
    for i in range(len(case.y)):
        if case.P[i]:
            same = torch.stack([case.s(i, p) for p in case.P[i]]) / temperature
            everything = torch.stack([case.s(i, j) for j in case.P[i] + case.N[i]]) / temperature
            rows.append(everything.logsumexp(0) - same.logsumexp(0))
    return sum(rows) / len(rows)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 0.001])
def test_equals_the_equation(situation, temperature):
    assert_equals_loop(SoftNearestNeighborLoss(temperature), lambda case: loop(case, temperature), batch(situation))


@pytest.mark.parametrize("situation", ["unit", "raw"])
def test_is_the_peers_nca_loss(situation):
    """SNN(T) = NCA(1/(2T)): norm(u - v)^2 / (2T) = 1/T - u.v/T."""
    case = batch(situation)
    assert_equals_peer(SoftNearestNeighborLoss(0.2), peers.NCALoss(softmax_scale=1 / 0.4), case)


def test_hopeless_rows_stay_in_the_mean():
    """The peer drops rows whose probability underflows to 0; here they keep their large loss."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.01]])
    y = torch.tensor([0, 0, 1])
    assert float(SoftNearestNeighborLoss(0.001)(x, y)) == pytest.approx(1000, rel=0.5)
    assert peers.NCALoss(softmax_scale=500)(x, y) < 100
