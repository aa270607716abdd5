import math

import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, classification_loop
from pytorch_metric_learning import losses as peers

from levelfield.losses import NormalizedSoftmaxLoss


def loop(case, weights, temperature):
    def logits(i):
        return [case.u(i) @ (w / w.norm()) / temperature for w in weights]

    return classification_loop(case, logits)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_equals_the_equation(situation, temperature):
    loss = NormalizedSoftmaxLoss(6, 5, temperature).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, temperature), class_batch(situation), weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = NormalizedSoftmaxLoss(6, 5).double(), peers.NormalizedSoftmaxLoss(6, 5).double()
    peer.W.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


@torch.no_grad()
def test_at_the_start_it_is_log_c_plus_the_logits_variance():
    """Random cosines have variance 1/D: E[loss] is about ln C + 1/(2 D T^2)."""
    torch.manual_seed(0)
    values = [
        float(NormalizedSoftmaxLoss(100, 512)(torch.randn(256, 512), torch.randint(100, (256,)))) for _ in range(5)
    ]
    assert sum(values) / 5 == pytest.approx(math.log(100) + 1 / (2 * 512 * 0.05**2), abs=0.05)


def test_label_smoothing_mixes_in_the_mean_over_classes():
    loss = NormalizedSoftmaxLoss(6, 5, label_smoothing=0.3).double()
    case = class_batch("raw")
    directions = loss.class_weights / loss.class_weights.norm(dim=1, keepdim=True)
    log_p = torch.stack([((case.u(i) @ directions.T) / 0.05).log_softmax(0) for i in range(len(case.y))])
    expected = -(0.7 * log_p[range(len(case.y)), case.y] + 0.3 * log_p.mean(1)).mean()
    torch.testing.assert_close(loss(case.x, case.y), expected)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="temperature=0 must be above 0"):
        NormalizedSoftmaxLoss(3, 2, temperature=0)
    with pytest.raises(ValueError, match=r"class_fraction=0 must lie in \(0, 1\]"):
        NormalizedSoftmaxLoss(3, 2, class_fraction=0)
