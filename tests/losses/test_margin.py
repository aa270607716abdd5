import pytest
import torch
from loss_cases import LABELS, SITUATIONS, assert_equals_loop, assert_equals_peer, batch
from pytorch_metric_learning import losses as peers

from levelfield.losses import MarginLoss


def loop(case, margin=0.2, nu=0.0, beta=None, pairs=False):
    """`beta` has one entry, or one for each class."""

    def b(i):
        return beta[int(case.y[i])] if len(beta) > 1 else beta[0]

    total, active = 0.0, 0
    if pairs:
        pull = [(i, case.d(i, p) - b(i) + margin) for i, row in enumerate(case.P) for p in row]
        push = [(i, b(i) - case.d(i, n) + margin) for i, row in enumerate(case.N) for n in row]
    else:
        pull = [(i, case.d(i, p) - b(i) + margin) for i, p, _ in case.triplets]
        push = [(i, b(i) - case.d(i, n) + margin) for i, _, n in case.triplets]
    for _, term in pull + push:
        if term > 0:
            total, active = total + term, active + 1
    loss = total / active
    if len(beta) > 1:
        return loss + nu * sum(b(i) for i, _ in pull) / active
    return loss + nu * beta[0]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("per_class", [False, True])
def test_equals_the_equation(situation, per_class):
    loss = MarginLoss(0.3, nu=0.1, beta=1.1, learn_beta=True, num_classes=12 if per_class else None).double()
    with torch.no_grad():
        loss.beta.add_(torch.linspace(0, 0.2, len(loss.beta)))
    assert_equals_loop(loss, lambda case: loop(case, 0.3, 0.1, loss.beta), batch(situation), loss.beta)


@pytest.mark.parametrize("situation", ["unit", "pairs", "reference"])
def test_the_pair_form_equals_its_equation_and_differs_from_the_triplet_form(situation):
    beta = torch.tensor([1.2], dtype=torch.float64)
    case = batch(situation)
    assert_equals_loop(MarginLoss(pairs=True), lambda c: loop(c, beta=beta, pairs=True), case)
    difference = MarginLoss(pairs=True)(*case.arguments()) - MarginLoss()(*case.arguments())
    assert difference.abs() > 1e-4


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [{}, {"learn_beta": True, "nu": 0.05, "num_classes": 12}])
def test_equals_pytorch_metric_learning(situation, arguments):
    ours, peer = MarginLoss(**arguments).double(), peers.MarginLoss(**arguments).double()
    assert_equals_peer(ours, peer, batch(situation))


def test_in_a_batch_of_8_classes_of_4_a_positive_counts_28_to_3():
    """Every positive has #N = 28 triplets, every negative #P = 3."""
    labels = [c for c in range(8) for _ in range(4)]
    case = batch("unit", labels, dim=16)
    d = torch.cdist(case.x, case.x)
    same = case.y[:, None] == case.y[None, :]
    positive = same & ~torch.eye(32, dtype=torch.bool)
    pull, push = (d - 1.0).clamp_min(0)[positive], (1.4 - d).clamp_min(0)[~same]
    expected = (28 * pull.sum() + 3 * push.sum()) / (28 * (pull > 0).sum() + 3 * (push > 0).sum())
    torch.testing.assert_close(MarginLoss(0.2, beta=1.2)(*case.arguments()), expected)


def test_the_number_of_classes_may_be_told_later():
    loss = MarginLoss(beta=0.7, learn_beta=True, beta_per_class=True)
    loss.set_num_classes(max(LABELS) + 1)
    assert loss.beta.shape == (12,)
    assert [name for name, _ in loss.named_parameters()] == ["beta"]
    torch.testing.assert_close(loss.beta.detach(), torch.full((12,), 0.7))
    plain = MarginLoss(learn_beta=True)
    plain.set_num_classes(12)
    assert plain.beta.shape == (1,)
    fixed = MarginLoss()
    assert not list(fixed.parameters())
    assert not fixed.state_dict()


def test_a_label_that_is_no_class_is_named():
    loss = MarginLoss(num_classes=3, learn_beta=True)
    with pytest.raises(ValueError, match="label 3 at position 1 is not one of the 3 classes"):
        loss(torch.randn(2, 4), torch.tensor([0, 3]))


def test_random_triplets_are_seeded():
    case = batch("raw")
    values = []
    for _ in range(2):
        torch.manual_seed(5)
        values.append(MarginLoss(triplets_per_anchor=7)(case.x, case.y))
    assert values[0] == values[1]
    assert MarginLoss(triplets_per_anchor=7)(case.x, case.y) != values[0]


def test_without_an_active_term_the_regulariser_of_each_class_is_nothing():
    """Its divisor counts active terms; the reference library gives 0 as well."""
    points, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    arguments = {"margin": 0.1, "nu": 10.0, "beta": 0.8, "learn_beta": True, "num_classes": 2}
    assert MarginLoss(**arguments)(points, labels) == 0
    assert peers.MarginLoss(**arguments)(points, labels) == 0
