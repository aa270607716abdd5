import pytest
import torch
from loss_cases import LABELS, assert_equals_loop, batch, cross_entropy

from levelfield.losses import PrototypicalLoss


def loop(case, num_support=None, squared=True, normalize=False):
    a = [case.u(i) if normalize else case.x[i] for i in range(len(case.y))]
    if case.ref is None:
        members = {c: [i for i, y in enumerate(case.y.tolist()) if y == c] for c in sorted(set(case.y.tolist()))}
        sizes = {c: len(m) // 2 if num_support is None else min(num_support, len(m) - 1) for c, m in members.items()}
        support = {c: [a[i] for i in m[: sizes[c]]] for c, m in members.items() if len(m) > 1}
        queries = [(i, c) for c, m in members.items() if len(m) > 1 for i in m[sizes[c] :]]
    else:
        b = [case.v(j) if normalize else case.ref[j] for j in range(len(case.ref_y))]
        classes = sorted(set(case.ref_y.tolist()))
        support = {c: [b[j] for j, y in enumerate(case.ref_y.tolist()) if y == c] for c in classes}
        queries = [(i, c) for i, c in enumerate(case.y.tolist()) if c in support]
    prototypes = {c: sum(points) / len(points) for c, points in support.items()}
    order = list(prototypes)
    terms = []
    for i, c in queries:
        logits = [-((a[i] - prototypes[k]).norm() ** (2 if squared else 1)) for k in order]
        terms.append(cross_entropy(logits, order.index(c)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", ["unit", "raw", "reference"])
@pytest.mark.parametrize("arguments", [{}, {"num_support": 3}, {"squared": False}, {"normalize": True}])
@pytest.mark.parametrize("labels", [LABELS, [3, 0, 3, 1, 0, 1, 3, 3, 9]])
def test_equals_the_equation(situation, arguments, labels):
    assert_equals_loop(PrototypicalLoss(**arguments), lambda c: loop(c, **arguments), batch(situation, labels))


def test_with_two_samples_a_class_one_supports_and_one_asks():
    case = batch("raw", labels=[0, 1, 0, 1])
    logits = [[-(case.x[q] - case.x[s]).square().sum() for s in (0, 1)] for q in (2, 3)]
    expected = (cross_entropy(logits[0], 0) + cross_entropy(logits[1], 1)) / 2
    torch.testing.assert_close(PrototypicalLoss()(case.x, case.y), expected)


def test_a_query_is_not_in_its_own_prototype():
    """The prototypes do not move with the queries."""
    case = batch("raw", labels=[0, 0, 1, 1])
    moved = case.x.detach().clone()
    moved[1] += 5  # the query of class 0
    alone = PrototypicalLoss()(case.x[[0, 2, 3]], torch.tensor([0, 1, 1]))
    assert alone == 0  # class 0 has no query and no support: one class left
    logits = [-(moved[1] - case.x[s]).square().sum() for s in (0, 2)]
    other = [-(case.x[3] - case.x[s]).square().sum() for s in (0, 2)]
    expected = (cross_entropy(logits, 0) + cross_entropy(other, 1)) / 2
    torch.testing.assert_close(PrototypicalLoss()(moved, case.y), expected.detach())


def test_an_episode_draws_nothing():
    case = batch("raw")
    state = torch.random.get_rng_state()
    PrototypicalLoss()(case.x, case.y)
    assert torch.equal(state, torch.random.get_rng_state())


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="num_support=0"):
        PrototypicalLoss(num_support=0)
    with pytest.raises(ValueError, match="takes no miner"):
        PrototypicalLoss()(*batch("pairs").arguments())
