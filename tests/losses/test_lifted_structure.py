import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import LiftedStructureLoss


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
