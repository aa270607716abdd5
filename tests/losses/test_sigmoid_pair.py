import math

import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, batch
from torch.nn.functional import logsigmoid

from levelfield.losses import SigmoidPairLoss


def loop(case, loss):
    t, b = loss.log_scale.exp(), loss.bias
    total = 0.0
    for i in range(len(case.y)):
        for z, others in ((1, case.P[i]), (-1, case.N[i])):
            for j in others:
                total = total - logsigmoid(z * (t * case.s(i, j) + b))
    return total / len(case.y)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [(), (3.0, 0.5)])
def test_equals_the_equation_its_scale_and_bias_too(situation, arguments):
    loss = SigmoidPairLoss(*arguments).double()
    assert_equals_loop(loss, lambda case: loop(case, loss), batch(situation), loss.log_scale, loss.bias)


def test_it_begins_at_the_papers_scale_and_bias():
    loss = SigmoidPairLoss()
    assert loss.log_scale.item() == pytest.approx(math.log(10))
    assert loss.bias.item() == -10
    half = SigmoidPairLoss(1.0, 0.0)(torch.eye(4), torch.arange(4))  # 12 pairs at z (t s + b) = 0, four anchors
    assert half.item() == pytest.approx(3 * math.log(2))
