import math

import pytest
import torch
from loss_cases import (
    CLASS_SITUATIONS,
    assert_equals_loop,
    class_batch,
    classification_loop,
    degrees,
    sample_weights,
)

from levelfield.losses import ArcFaceLoss, MagFaceLoss


def loop(case, weights, easy, l_a, u_a, l_m, u_m, scale, reg):
    a = [case.x[i].norm().clamp(l_a, u_a) for i in range(len(case.y))]

    def logits(i):
        margin = degrees((u_m - l_m) / (u_a - l_a) * (a[i] - l_a) + l_m)
        out = []
        for c, w in enumerate(weights):
            cos = case.u(i) @ (w / w.norm())
            if c == int(case.y[i]) and not (easy and cos <= 0):
                theta = torch.acos(cos)
                cos = torch.cos(theta + margin) if theta + margin <= math.pi else cos - margin * torch.sin(margin)
            out.append(scale * cos)
        return out

    pulls = [w * (1 / a_i + a_i / u_a**2) for w, a_i in zip(sample_weights(case), a, strict=True)]
    return classification_loop(case, logits) + reg * sum(pulls) / len(pulls)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("easy", [True, False])
@pytest.mark.parametrize("arguments", [(10.0, 110.0, 25.8, 45.8, 64.0, 35.0), (3.0, 8.0, 0.0, 120.0, 5.0, 2.0)])
def test_equals_the_equation(situation, arguments, easy):
    """Norms are 1, below both ranges, or some 2 to 12, below, in and above the second."""
    loss = MagFaceLoss(6, 5, *arguments, easy_margin=easy).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, easy, *arguments), class_batch(situation), weights)


def test_one_margin_and_no_pull_is_arcface():
    loss = MagFaceLoss(6, 5, 1, 9, 28.6, 28.6, regularizer_weight=0, easy_margin=False).double()
    arc = ArcFaceLoss(6, 5).double()
    arc.load_state_dict(loss.state_dict())
    case = class_batch("raw")
    torch.testing.assert_close(loss(case.x, case.y), arc(case.x, case.y))


def test_the_pull_is_up_to_the_upper_norm():
    """1/a + a/u^2 has its least at a = u."""
    for norm in (2.0, 8.0):
        x = torch.tensor([[norm, 0.0]], requires_grad=True)
        loss = MagFaceLoss(1, 2, 1.0, 9.0)  # one class: no other to be told from
        loss(x, torch.tensor([0])).backward()
        assert x.grad[0, 0].item() == pytest.approx(35 * (1 / 81 - 1 / norm**2), rel=1e-4)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"lower_norm=10 must lie between 0 and upper_norm=5"):
        MagFaceLoss(3, 2, lower_norm=10, upper_norm=5)
