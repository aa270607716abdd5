import pytest
import torch
from loss_cases import CLASS_SITUATIONS, assert_equals_loop, assert_equals_peer, class_batch, classification_loop
from pytorch_metric_learning import losses as peers

from levelfield.losses import ProxyNCALoss


def loop(case, weights, scale):
    def logits(i):
        return [-scale * (case.u(i) - w / w.norm()).square().sum() for w in weights]

    return classification_loop(case, logits, anchors_only=True)


def exclusive_loop(case, weights, scale):
    terms = []
    for i in range(len(case.y)):
        squares = [(case.u(i) - w / w.norm()).square().sum() for w in weights]
        own = int(case.y[i])
        others = torch.stack([-scale * d for c, d in enumerate(squares) if c != own])
        terms.append(scale * squares[own] + others.logsumexp(0))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_equals_the_equation(situation, scale):
    loss = ProxyNCALoss(6, 5, scale).double()
    weights = loss.class_weights
    assert_equals_loop(loss, lambda case: loop(case, weights, scale), class_batch(situation), weights)


def test_without_the_positive_below_the_line_it_equals_the_paper_and_may_be_negative():
    loss = ProxyNCALoss(6, 5, 9.0, exclude_positive=True).double()
    weights = loss.class_weights
    case = class_batch("raw")
    assert_equals_loop(loss, lambda c: exclusive_loop(c, weights, 9.0), case, weights)
    assert loss(weights.detach(), torch.arange(6)) < 0
    assert ProxyNCALoss(1, 5, exclude_positive=True)(torch.randn(3, 5), torch.zeros(3, dtype=torch.long)) == 0


@pytest.mark.parametrize("situation", CLASS_SITUATIONS)
def test_equals_pytorch_metric_learning(situation):
    loss, peer = ProxyNCALoss(6, 5, 3.0).double(), peers.ProxyNCALoss(6, 5, softmax_scale=3).double()
    peer.proxies.data = loss.class_weights.data.clone()
    assert_equals_peer(loss, peer, class_batch(situation))


def test_rows_whose_probability_underflows_stay_where_the_peer_drops_them():
    loss, peer = ProxyNCALoss(2, 2, 100.0), peers.ProxyNCALoss(2, 2, softmax_scale=100)
    loss.class_weights.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    peer.proxies.data = loss.class_weights.data.clone()
    x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    assert float(loss(x, y).detach()) == pytest.approx(200)  # (0 + 400) / 2
    assert peer(x, y) == 0


def test_a_scale_of_one_over_the_temperature_is_proxy_nca_s_later_form():
    """Teh et al. 2020: e^(-d(x, f(x)) / T) over the sum of all proxies', d the squared distance of unit vectors."""
    loss, T = ProxyNCALoss(6, 5, softmax_scale=9.0).double(), 1 / 9
    case = class_batch("raw")

    def probability(i):
        close = torch.stack([(-(case.u(i) - w / w.norm()).square().sum() / T).exp() for w in loss.class_weights])
        return close[int(case.y[i])] / close.sum()

    def equation(case):
        return sum(-probability(i).log() for i in range(len(case.y))) / len(case.y)

    assert_equals_loop(loss, equation, case, loss.class_weights)
