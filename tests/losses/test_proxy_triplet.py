import pytest
import torch
from loss_cases import assert_equals_loop, class_batch, nonzero_mean

from levelfield.losses import ProxyTripletLoss


def loop(case, weights, margin, reduction):
    terms = []
    for i in range(len(case.y)):
        squares = [(case.u(i) - w / w.norm()).square().sum() for w in weights]
        own = int(case.y[i])
        terms += [(squares[own] - d + margin).clamp_min(0) for c, d in enumerate(squares) if c != own]
    return nonzero_mean(terms) if reduction == "nonzero" else sum(terms) / len(terms)


@pytest.mark.parametrize("situation", ["unit", "raw"])
@pytest.mark.parametrize("margin", [0.1, 1.0])
@pytest.mark.parametrize("reduction", ["nonzero", "mean"])
def test_equals_the_equation(situation, margin, reduction):
    loss = ProxyTripletLoss(6, 5, margin, reduction).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, margin, reduction), class_batch(situation), weights)


def test_a_miner_weighs_the_samples():
    loss = ProxyTripletLoss(6, 5, margin=5.0).double()  # every term is active
    case = class_batch("raw")
    named = torch.tensor([0, 0, 1])
    first, second = (loss(case.x[[i]], case.y[[i]]) for i in (0, 1))
    torch.testing.assert_close(loss(case.x, case.y, (named, named, named)), (first + second / 2) / 2)
