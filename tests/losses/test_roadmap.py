import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, batch

from levelfield.losses import ROADMAPLoss

T, RHO, DELTA = 0.02, 70.0, 0.08


def bound(x):
    def sigmoid(z):
        return 1 / (1 + torch.exp(-torch.as_tensor(z, dtype=torch.float64) / T))

    if x <= 0:
        return sigmoid(x)
    return sigmoid(x) + 0.5 if x <= DELTA else RHO * (x - DELTA) + sigmoid(DELTA) + 0.5


def loop(case, weight):
    losses = []
    for i in range(len(case.y)):
        positives, negatives = sorted(set(case.P[i])), sorted(set(case.N[i]))
        if not positives:
            continue
        s = {j: case.s(i, j) for j in positives + negatives}
        precision = pull = push = 0.0
        for p in positives:
            same = 1 + sum(1 for q in positives if q != p and s[q] >= s[p])
            precision = precision + same / (same + sum(bound(s[n] - s[p]) for n in negatives))
            pull = pull + (0.9 - s[p]).clamp_min(0) / len(positives)
        for n in negatives:
            push = push + (s[n] - 0.6).clamp_min(0) / len(negatives)
        losses.append((1 - weight) * (1 - precision / len(positives)) + weight * (pull + push))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("situation", [s for s in SITUATIONS if s != "duplicates"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_equals_the_equation(situation, weight):
    loss = ROADMAPLoss(T, RHO, DELTA, weight)
    assert_equals_loop(loss, lambda case: loop(case, weight), batch(situation))


def test_duplicates_equal_the_equation():
    """Exact cosines: points on a grid of quarters of a turn and of 60 degrees, several of a class alike."""
    half, high = 0.5, 0.75**0.5
    points = torch.tensor([[1, 0], [1, 0], [half, high], [1, 0], [half, high], [-1, 0.0]], dtype=torch.float64)
    case = batch("raw", [0, 0, 0, 1, 1, 1], dim=2)
    case.x = points.requires_grad_()
    cosines = points.detach() @ points.detach().T
    case.s = lambda i, j: cosines[i, j]
    assert float(ROADMAPLoss(T, RHO, DELTA)(case.x, case.y).detach()) == pytest.approx(float(loop(case, 0.5)))


def test_it_bounds_one_minus_the_average_precision_from_above():
    cosines = torch.rand(50, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    positives = (torch.arange(12) < 4).double().expand(50, 12)
    found = ROADMAPLoss(weight=0.0).pair_loss(cosines, positives, 1 - positives)
    exact = []
    for row in cosines:
        ranks = [(1 + int((row[:4] > row[p]).sum()), 1 + int((row > row[p]).sum())) for p in range(4)]
        exact.append(1 - sum(same / every for same, every in ranks) / 4)
    assert found >= sum(exact) / 50
    steps = ROADMAPLoss(1e-5, rho=1e-6, delta=0.0, weight=0.0).pair_loss(cosines, positives, 1 - positives)
    assert steps == pytest.approx(sum(exact) / 50, abs=1e-4)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"weight=1\.5 lie in"):
        ROADMAPLoss(weight=1.5)
