import math

import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_same, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import PNPLoss

PENALTIES = {
    "O": lambda R: R,
    "Ds": lambda R: (1 + R).log(),
    "Dq": lambda R: 1 - 1 / (1 + R) ** 4,
    "Iu": lambda R: (1 + R) * (1 + R).log() - R,
    "Ib": lambda R: (3 * R - (1 + 3 * R).log()) / 9,
}


def loop(case, variant, anneal):
    losses = []
    for i in range(len(case.y)):
        positives, negatives = sorted(set(case.P[i])), sorted(set(case.N[i]))
        if not positives:
            continue
        penalties = []
        for p in positives:
            gaps = [case.s(i, n) - case.s(i, p) for n in negatives]
            before = sum((1 / (1 + (-gap / anneal).exp()) for gap in gaps), torch.zeros((), dtype=torch.float64))
            penalties.append(PENALTIES[variant](before))
        losses.append(sum(penalties) / len(positives))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("variant", PENALTIES)
def test_equals_the_equation(situation, variant):
    loss = PNPLoss(b=3, alpha=4, anneal=0.05, variant=variant)
    assert_equals_loop(loss, lambda case: loop(case, variant, 0.05), batch(situation))


@pytest.mark.parametrize("variant", PENALTIES)
def test_equals_pytorch_metric_learning_which_counts_the_anchor_as_a_positive(variant):
    """Iu but for its - R, which the authors' code lacks too."""
    case = batch("raw", [7, 7, 7, 2, 2, 5, 5, 5, 5])
    expected = peers.PNPLoss(b=3, alpha=4, variant=variant)(case.x, case.y)
    if variant == "Iu":
        expected = expected - peers.PNPLoss(variant="O")(case.x, case.y)
    value = PNPLoss(b=3, alpha=4, variant=variant)(case.x, case.y, None, case.x, case.y)
    assert_same(value, expected, case.x, value=1e-5, gradient=1e-4)


def test_ranks_by_hand():
    """Before the positives stand one negative and two."""
    cosines = torch.tensor([[0.9, 0.8, 0.7, 0.6]], dtype=torch.float64)
    positives = torch.tensor([[0.0, 1, 0, 1]], dtype=torch.float64)
    loss = PNPLoss(anneal=1e-4, variant="Ds").pair_loss(cosines, positives, 1 - positives)
    assert loss == pytest.approx((math.log(2) + math.log(3)) / 2)


def test_another_variant_is_refused():
    with pytest.raises(ValueError, match="variant='Dx' must be one of O, Ds, Dq, Iu, Ib"):
        PNPLoss(variant="Dx")
