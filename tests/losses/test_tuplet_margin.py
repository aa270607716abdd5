import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, degrees, value_and_gradients
from pytorch_metric_learning import losses as peers

from levelfield.losses import TupletMarginLoss

APART = [s for s in SITUATIONS if s != "duplicates"]  # where they coincide an arc cosine has no gradient


def loop(case, margin, scale):
    terms = []
    for i, row in enumerate(case.P):
        for p in row:
            target = torch.cos(torch.acos(case.s(i, p)) - degrees(margin))
            exponents = [scale * (case.s(i, n) - target) for n in case.N[i]]
            terms.append(torch.stack([torch.zeros_like(target), *exponents]).logsumexp(0))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", APART)
@pytest.mark.parametrize("arguments", [(5.73, 64.0), (20.0, 4.0)])
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(TupletMarginLoss(*arguments), lambda case: loop(case, *arguments), batch(situation))


@pytest.mark.parametrize("situation", APART)
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(TupletMarginLoss(), peers.TupletMarginLoss(), batch(situation))


def test_coinciding_embeddings_have_a_finite_gradient_where_the_peers_is_nan():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    y = torch.tensor([0, 0, 1])
    assert value_and_gradients(TupletMarginLoss()(x, y), x)[1][0].isfinite().all()
    assert value_and_gradients(peers.TupletMarginLoss()(x, y), x)[1][0].isnan().any()


def test_within_the_margin_the_loss_rises_again():
    def pair_at(angle):
        theta = torch.deg2rad(torch.tensor(angle, dtype=torch.float64))
        points = torch.tensor([[1.0, 0, 0], [float(theta.cos()), float(theta.sin()), 0], [0, 0, 1]])
        return TupletMarginLoss(margin=20, scale=4)(points, torch.tensor([0, 0, 1]))

    assert pair_at(2.0) > pair_at(20.0) < pair_at(38.0)
