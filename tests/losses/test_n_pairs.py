import pytest
import torch
from loss_cases import assert_equals_loop, assert_equals_peer, batch, cross_entropy
from pytorch_metric_learning import losses as peers

from levelfield.losses import NPairsLoss


def loop(case, l2_reg=0.0, symmetric=False, normalize=True, temperature=1.0):
    pairs = {}
    for i in range(len(case.y)):
        for p in case.P[i]:
            pairs.setdefault(int(case.y[i]), (i, p))
    pairs = list(pairs.values())

    def logit(a, p):
        return (case.s(a, p) if normalize else case.x[a] @ case.others[p]) / temperature

    forward = [cross_entropy([logit(a, q) for _, q in pairs], k) for k, (a, _) in enumerate(pairs)]
    backward = [cross_entropy([logit(b, p) for b, _ in pairs], k) for k, (_, p) in enumerate(pairs)]
    loss = sum(forward) / len(pairs)
    if symmetric:
        loss = (loss + sum(backward) / len(pairs)) / 2
    for a, p in pairs:
        loss = loss + l2_reg * (case.x[a] @ case.x[a] + case.others[p] @ case.others[p]) / len(pairs)
    return loss


@pytest.mark.parametrize("situation", ["unit", "raw", "triplets", "reference"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"normalize": False, "l2_reg": 5e-4}, {"symmetric": True}, {"temperature": 0.1}],
)
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(NPairsLoss(**arguments), lambda case: loop(case, **arguments), batch(situation))


@pytest.mark.parametrize("situation", ["unit", "raw", "pairs", "triplets"])
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(NPairsLoss(), peers.NPairsLoss(), batch(situation))


def test_a_class_of_one_sample_takes_no_part():
    case = batch("raw", labels=[0, 0, 1, 1, 2])
    torch.testing.assert_close(NPairsLoss()(case.x, case.y), NPairsLoss()(case.x[:4], case.y[:4]))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="temperature=0 must be above 0"):
        NPairsLoss(temperature=0)
    assert torch.isfinite(NPairsLoss()(torch.randn(2, 3), torch.tensor([0, 0])))
