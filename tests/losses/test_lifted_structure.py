import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import LiftedStructureLoss, lifted_structure
from levelfield.losses.pairs import distances


def loop(case, neg_margin=1.0, pos_margin=0.0, normalize=True):
    def distance(a, b):
        return (a / a.norm() - b / b.norm() if normalize else a - b).norm()

    ref_y = None if case.ref is None else case.ref_y.tolist()
    terms = []
    for i, row in enumerate(case.P):
        for p in row:
            pushes = [neg_margin - distance(case.x[i], case.others[n]) for n in case.N[i]]
            if case.ref is None:
                pushes += [neg_margin - distance(case.x[p], case.x[n]) for n in case.N[p]]
            else:
                own = [n for n in range(len(ref_y)) if ref_y[n] != ref_y[p]]
                pushes += [neg_margin - distance(case.ref[p], case.ref[n]) for n in own]
            joined = torch.stack(pushes).logsumexp(0)
            terms.append((joined + distance(case.x[i], case.others[p]) - pos_margin).clamp_min(0) ** 2 / 2)
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(
    "arguments", [{}, {"neg_margin": -1.5, "pos_margin": 0.4}, {"normalize": False, "neg_margin": 8.0}]
)
def test_equals_the_equation(situation, arguments):
    assert_equals_loop(LiftedStructureLoss(**arguments), lambda case: loop(case, **arguments), batch(situation))


@pytest.mark.parametrize("situation", ["unit", "raw", "pairs", "triplets"])
def test_equals_pytorch_metric_learning(situation):
    assert_equals_peer(LiftedStructureLoss(), peers.LiftedStructureLoss(), batch(situation))


def test_with_references_the_peer_compares_a_query_index_with_a_reference_index():
    case = batch("reference")
    ours, peer = LiftedStructureLoss()(*case.arguments()), peers.LiftedStructureLoss()(*case.arguments())
    torch.testing.assert_close(ours, loop(case))
    assert abs(float(ours.detach() - peer.detach())) > 0.05


def test_references_taken_in_parts_have_the_same_value_and_gradients(monkeypatch):
    case = batch("raw", labels=[0, 0, 1, 1, 2])
    other_y = torch.arange(90) % 4  # some are of a class that the batch lacks
    others = batch("raw", labels=other_y.tolist(), seed=1).x
    found = []
    for room in (2**24, 1):
        monkeypatch.setattr(lifted_structure, "ROW_VALUES", room)
        value = LiftedStructureLoss()(case.x, case.y, None, others, other_y)
        found.append((value, *torch.autograd.grad(value, (case.x, others))))
    for whole, in_parts in zip(*found, strict=True):
        torch.testing.assert_close(in_parts, whole)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equal_points_that_are_not_normalized_have_no_distance_and_no_gradient(scale):
    points = scale * torch.randn(64, 100)
    anchors, others = points.clone().requires_grad_(), points.clone().requires_grad_()
    apart = distances(anchors, others)
    assert (apart.diag() == 0).all()
    assert (apart + torch.eye(64) > 0).all()
    for gradient in torch.autograd.grad(apart.diag().sum(), (anchors, others)):
        assert not gradient.any()
