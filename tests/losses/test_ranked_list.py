import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import RankedListLoss


def loop(case, margin, Tn, imbalance=0.5, alpha=None, Tp=0.0, reduction="mean", epsilon=0.0):
    alpha = 1 + margin / 2 if alpha is None else alpha
    columns = len(case.others)
    rows = []
    for i in range(len(case.y)):
        pulls = [case.d(i, p) - (alpha - margin) for p in case.P[i] if case.d(i, p) > alpha - margin]
        pushes = [alpha - case.d(i, n) for n in case.N[i] if case.d(i, n) < alpha]
        row = torch.zeros((), dtype=torch.float64)
        for share, sharpness, violations in ((1 - imbalance, Tp, pulls), (imbalance, Tn, pushes)):
            weights = [(sharpness * v).exp() for v in violations]
            if violations:
                weighted = sum(w * v for w, v in zip(weights, violations, strict=True))
                row = row + share * weighted / (sum(weights) + epsilon * columns)
        rows.append(row)
    if reduction == "nonzero":
        rows = [row for row in rows if row > 0]
    return sum(rows) / len(rows)


ARGUMENTS = [
    {"margin": 0.4, "Tn": 10.0},
    {"margin": 0.4, "Tn": 3.0, "Tp": 2.0, "imbalance": 0.3, "alpha": 1.2, "reduction": "nonzero"},
]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(RankedListLoss(**arguments), lambda case: loop(case, **arguments), batch(situation))


@pytest.mark.parametrize("situation", ["unit", "raw"])
def test_the_peer_is_the_equation_with_1e_5_a_column_below_the_line(situation):
    case = batch(situation)
    peer = peers.RankedListLoss(margin=0.4, Tn=4)(case.x, case.y)
    torch.testing.assert_close(peer, loop(case, 0.4, 4.0, epsilon=1e-5), rtol=1e-10, atol=0)
    torch.testing.assert_close(RankedListLoss(0.4, 4.0)(case.x, case.y), peer, rtol=1e-2, atol=0)


def test_sharp_weights_do_not_overflow():
    case = batch("raw")
    x = case.x.detach().float().requires_grad_()
    loss = RankedListLoss(margin=0.4, Tn=1000.0)(x, case.y)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_an_imbalance_out_of_range_is_refused():
    with pytest.raises(ValueError, match="imbalance=2 must lie in"):
        RankedListLoss(margin=0.4, Tn=10, imbalance=2)


def test_a_miner_may_repeat_a_pair_many_times():
    """Weights of e^(Tn v) are compared among pairs, however often each counts."""
    case = batch("raw", labels=[0] * 4 + [1] * 4, seed=4)
    a, p, n = torch.tensor(case.triplets).T
    often = 1 + 15 * (torch.arange(len(a)) % 7 == 0)
    case.chosen = tuple(indices.repeat_interleave(often) for indices in (a, p, n))
    case.__post_init__()
    arguments = {"margin": 0.4, "Tn": 40.0, "Tp": 30.0}
    assert_equals_loop(RankedListLoss(**arguments), lambda case: loop(case, **arguments), case)
