import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, classification_loop
from pytorch_metric_learning import losses as peers
from pytorch_metric_learning import regularizers

from levelfield.losses import CosFaceLoss, SoftTripleLoss


def loop(case, weights, K=10, la=20.0, gamma=0.1, margin=0.01, reg_weight=0.0):
    unit = [w / w.norm() for w in weights]
    C = len(unit) // K

    def logits(i):
        out = []
        for c in range(C):
            cos = torch.stack([case.u(i) @ w for w in unit[c * K : (c + 1) * K]])
            similarity = ((cos / gamma).softmax(0) * cos).sum()
            out.append(la * (similarity - margin * (c == int(case.y[i]))))
        return out

    pairs = [(c * K + a, c * K + b) for c in range(C) for a in range(K) for b in range(a + 1, K)]
    spread = sum((2 + 1e-5 - 2 * unit[a] @ unit[b]).sqrt() for a, b in pairs) / max(len(pairs), 1)
    return classification_loop(case, logits) + reg_weight * spread


ARGUMENTS = [(3, 20.0, 0.1, 0.01, 0.0), (4, 40.0, 30.0, 0.3, 0.5)]


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_equals_the_equation(situation, arguments):
    loss = SoftTripleLoss(6, 5, *arguments).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, *arguments), class_batch(situation), weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = SoftTripleLoss(6, 5).double(), peers.SoftTripleLoss(6, 5).double()
    peer.fc.data = loss.class_weights.data.T.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_the_regulariser_is_twice_the_peers():
    case = class_batch("raw")
    loss = SoftTripleLoss(6, 5, centers_per_class=3, reg_weight=0.375).double()
    peer = peers.SoftTripleLoss(
        6,
        5,
        centers_per_class=3,
        weight_regularizer=regularizers.SparseCentersRegularizer(6, 3),
        weight_reg_weight=0.75,
    ).double()
    peer.fc.data = loss.class_weights.data.T.clone()
    torch.testing.assert_close(loss(case.x, case.y), peer(case.x, case.y), rtol=1e-3, atol=0)  # its 1e-5 is another


def test_with_one_centre_it_is_cosface():
    ours, cosface = SoftTripleLoss(6, 5, 1, la=30, margin=0.2).double(), CosFaceLoss(6, 5, 0.2, 30).double()
    ours.load_state_dict(cosface.state_dict())
    case = class_batch("raw")
    torch.testing.assert_close(ours(case.x, case.y), cosface(case.x, case.y))


def test_a_large_gamma_is_the_mean_of_the_centres_and_a_small_one_the_nearest():
    cosines = torch.tensor([[[0.9], [0.1], [-0.4]]], dtype=torch.float64)
    target = torch.tensor([0])
    mean = SoftTripleLoss(1, 2, 3, la=1, gamma=1e6, margin=0).logits(cosines, target)
    nearest = SoftTripleLoss(1, 2, 3, la=1, gamma=1e-3, margin=0).logits(cosines, target)
    assert float(mean) == pytest.approx(0.2, abs=1e-5)
    assert float(nearest) == pytest.approx(0.9, abs=1e-9)
