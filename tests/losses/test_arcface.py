import math

import pytest
import torch
from loss_cases import (
    CLASS_SITUATIONS,
    assert_equals_loop,
    assert_equals_peer,
    class_batch,
    classification_loop,
    degrees,
)
from pytorch_metric_learning import losses as peers

from levelfield.losses import ArcFaceLoss


def loop(case, weights, margin, scale):
    def logits(i):
        out = []
        for c, w in enumerate(weights):
            cos = case.u(i) @ (w / w.norm())
            theta = torch.acos(cos)
            if c == int(case.y[i]):
                inside = theta <= math.pi - degrees(margin)
                cos = (
                    torch.cos(theta + degrees(margin)) if inside else cos - degrees(margin) * math.sin(degrees(margin))
                )
            out.append(scale * cos)
        return out

    return classification_loop(case, logits)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize(("margin", "scale"), [(28.6, 64.0), (100.0, 10.0), (0.0, 30.0)])
def test_equals_the_equation(situation, margin, scale):
    loss = ArcFaceLoss(6, 5, margin, scale).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, margin, scale), class_batch(situation), weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = ArcFaceLoss(6, 5, margin=70).double(), peers.ArcFaceLoss(6, 5, margin=70).double()
    peer.W.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_an_embedding_on_its_class_weight_or_opposite_to_it_has_a_finite_gradient():
    loss = ArcFaceLoss(2, 3)
    embeddings = torch.stack([loss.class_weights[0], -loss.class_weights[1]]).detach().requires_grad_()
    loss(embeddings, torch.tensor([0, 1])).backward()
    assert embeddings.grad.isfinite().all()
    assert loss.class_weights.grad.isfinite().all()


def test_the_target_logit_jumps_where_the_angle_would_pass_180_degrees():
    """From cos 180 = -1 to cos(180 - m) - m sin m = -1.117 at the default margin."""
    loss = ArcFaceLoss(1, 2).double()
    angle = torch.deg2rad(torch.tensor([180 - 28.6 - 1e-6, 180 - 28.6 + 1e-6], dtype=torch.float64))
    logits = loss.logits(angle.cos()[:, None], torch.tensor([0, 0])) / 64
    torch.testing.assert_close(logits[:, 0], torch.tensor([-1.0, -1.1169], dtype=torch.float64), rtol=0, atol=1e-4)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="margin=200 is an angle in degrees"):
        ArcFaceLoss(3, 2, margin=200)
    with pytest.raises(ValueError, match="scale=0 must be above 0"):
        ArcFaceLoss(3, 2, scale=0)
