import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, sample_weights
from pytorch_metric_learning import losses as peers

from levelfield.losses import ProxyAnchorLoss


def loop(case, weights, margin, alpha):
    shares = sample_weights(case)
    pull, push, present = 0.0, 0.0, 0
    for c, w in enumerate(weights):
        cos = [case.u(i) @ (w / w.norm()) for i in range(len(case.y))]
        own = [-alpha * (cos[i] - margin) + shares[i] - 1 for i in range(len(cos)) if int(case.y[i]) == c]
        others = [alpha * (cos[i] + margin) + shares[i] - 1 for i in range(len(cos)) if int(case.y[i]) != c]
        if own:
            present += 1
            pull = pull + torch.log1p(sum(z.exp() for z in own))
        push = push + torch.log1p(sum(z.exp() for z in others))
    return pull / present + push / len(weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("arguments", [(0.1, 32.0), (0.3, 2.0)])
def test_equals_the_equation(situation, arguments):
    loss = ProxyAnchorLoss(6, 5, *arguments).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, *arguments), class_batch(situation), weights)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = ProxyAnchorLoss(6, 5).double(), peers.ProxyAnchorLoss(6, 5).double()
    peer.proxies.data = loss.class_weights.data.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_a_class_present_once_counts_once():
    loss = ProxyAnchorLoss(3, 4).double()
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cos = (x / x.norm(dim=1, keepdim=True)) @ (loss.class_weights / loss.class_weights.norm(dim=1, keepdim=True)).T
    y = torch.tensor([0, 1, 1, 1])  # class 2 is absent
    pull = sum(torch.log1p((-32 * (cos[y == c, c] - 0.1)).exp().sum()) for c in (0, 1)) / 2
    push = sum(torch.log1p((32 * (cos[y != c, c] + 0.1)).exp().sum()) for c in range(3)) / 3
    torch.testing.assert_close(loss(x, y), pull + push)
