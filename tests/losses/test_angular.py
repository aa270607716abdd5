import math

import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, batch, value_and_gradients
from pytorch_metric_learning import losses as peers

from levelfield.losses import AngularLoss, angular


def loop(case, alpha=40.0, normalize=True):
    t = math.tan(math.radians(alpha)) ** 2
    ref_y = (case.y if case.ref is None else case.ref_y).tolist()
    a = [case.u(i) if normalize else case.x[i] for i in range(len(case.y))]
    b = [case.v(j) if normalize else case.others[j] for j in range(len(ref_y))]
    terms = []
    for i, row in enumerate(case.P):
        for p in row:
            negatives = [n for n in range(len(ref_y)) if ref_y[n] != int(case.y[i])]
            exponents = [4 * t * (a[i] + b[p]) @ b[n] - 2 * (1 + t) * (a[i] @ b[p]) for n in negatives]
            terms.append(torch.stack([torch.zeros_like(exponents[0]), *exponents]).logsumexp(0))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [{}, {"alpha": 70.0}, {"alpha": 45.0, "normalize": False}])
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(AngularLoss(**arguments), lambda case: loop(case, **arguments), batch(situation))


@pytest.mark.parametrize("situation", ["unit", "pairs", "triplets"])
def test_equals_pytorch_metric_learning_on_unit_vectors(situation):
    """Its gradient has a part along the embeddings, for it does not normalise the negatives: compare the rest."""
    case = batch(situation)
    case.x = (case.x / case.x.norm(dim=1, keepdim=True)).detach().requires_grad_()
    value, (gradient,) = value_and_gradients(AngularLoss()(*case.arguments()), case.x)
    peer_value, (peer_gradient,) = value_and_gradients(peers.AngularLoss()(*case.arguments()), case.x)
    x = case.x.detach()
    torch.testing.assert_close(value, peer_value, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        gradient, peer_gradient - x * (x * peer_gradient).sum(1, keepdim=True), rtol=1e-4, atol=1e-6
    )


def test_on_raw_embeddings_the_peer_leaves_the_negatives_as_they_are():
    case = batch("raw")
    ours, peer = AngularLoss()(case.x, case.y), peers.AngularLoss()(case.x, case.y)
    torch.testing.assert_close(ours, loop(case))
    assert abs(float(ours.detach() - peer.detach())) > 0.5


def test_the_scale_of_the_embeddings_does_not_matter():
    case = batch("raw")
    torch.testing.assert_close(AngularLoss()(7 * case.x, case.y), AngularLoss()(case.x, case.y))


def test_an_angle_out_of_range_is_refused():
    with pytest.raises(ValueError, match="alpha=90 is an angle in degrees"):
        AngularLoss(alpha=90)


@pytest.mark.parametrize("with_references", [False, True])
def test_pairs_taken_in_parts_have_the_same_value_and_derivatives(with_references, monkeypatch):
    case = batch("raw", labels=[0] * 12 + [1] * 12)
    others, other_y = batch("raw", labels=[0, 1] * 10, seed=1).x, torch.tensor([0, 1] * 10)
    references = (None, others, other_y) if with_references else ()
    found = []
    for room in (2**24, 1):
        monkeypatch.setattr(angular, "ROW_VALUES", room)
        value = AngularLoss()(case.x, case.y, *references)
        first = torch.autograd.grad(value, [case.x, *references[1:2]], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), case.x)
        found.append((value, *first, *second))
    for whole, in_parts in zip(*found, strict=True):
        torch.testing.assert_close(in_parts, whole)
