import pytest
import torch
from loss_cases import SITUATIONS, assert_equals_loop, assert_equals_peer, batch, nonzero_mean
from pytorch_metric_learning import distances
from pytorch_metric_learning import losses as peers
from torch.nn.functional import softplus

from levelfield.losses import TripletMarginLoss, triplets


def loop(case, margin=0.05, swap=False, smooth=False, power=1, normalize=True):
    def distance(a, b):
        return (a / a.norm() - b / b.norm() if normalize else a - b).norm() ** power

    terms = []
    for i, p, n in case.triplets:
        far = distance(case.x[i], case.others[n])
        if swap:
            far = torch.minimum(far, distance(case.others[p], case.others[n]))
        violation = distance(case.x[i], case.others[p]) - far + margin
        terms.append(softplus(violation) if smooth else violation.clamp_min(0))
    return nonzero_mean(terms)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"margin": -0.2},
        {"margin": 2.5},
        {"power": 2, "margin": 0.3},
        {"normalize": False, "margin": 1.0},
        {"swap": True, "margin": 0.2},
        {"smooth_loss": True},
    ],
)
@pytest.mark.parametrize("compared", [0, triplets.COMPARED], ids=["sorted", "compared"])
def test_equals_the_equation(situation, arguments, compared, monkeypatch):
    monkeypatch.setattr(triplets, "COMPARED", compared)
    renamed = {"smooth" if k == "smooth_loss" else k: v for k, v in arguments.items()}
    assert_equals_loop(TripletMarginLoss(**arguments), lambda case: loop(case, **renamed), batch(situation))


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("arguments", [{}, {"margin": 0.3, "smooth_loss": True}])
def test_equals_pytorch_metric_learning(situation, arguments):
    assert_equals_peer(TripletMarginLoss(**arguments), peers.TripletMarginLoss(**arguments), batch(situation))


@pytest.mark.parametrize("situation", ["unit", "pairs", "triplets"])
def test_swap_and_squared_distances_equal_pytorch_metric_learning(situation):
    ours = TripletMarginLoss(margin=0.3, swap=True, power=2)
    peer = peers.TripletMarginLoss(margin=0.3, swap=True, distance=distances.LpDistance(power=2))
    assert_equals_peer(ours, peer, batch(situation))


@pytest.mark.parametrize("compared", [0, triplets.COMPARED], ids=["sorted", "compared"])
def test_a_repeated_pair_makes_repeated_triplets(compared, monkeypatch):
    monkeypatch.setattr(triplets, "COMPARED", compared)
    case = batch("pairs")
    a1, p, a2, n = case.chosen
    case.chosen = (torch.cat([a1, a1[:3]]), torch.cat([p, p[:3]]), torch.cat([a2, a2[:9]]), torch.cat([n, n[:9]]))
    case.__post_init__()
    assert_equals_loop(TripletMarginLoss(margin=0.4), lambda c: loop(c, 0.4), case)


def test_terms_at_the_hinge_do_not_count():
    """Axis vectors are all sqrt(2) apart: every triplet ties, and a margin of 0 leaves none active."""
    points, labels = torch.eye(6), torch.tensor([0, 0, 0, 1, 1, 1])
    assert TripletMarginLoss(margin=0.0)(points, labels) == 0
    torch.testing.assert_close(TripletMarginLoss(margin=0.25)(points, labels), torch.tensor(0.25))


def test_semihard_takes_the_nearest_farther_negative_else_the_farthest():
    angles = torch.deg2rad(torch.tensor([0.0, 40.0, 10.0, 50.0, 90.0], dtype=torch.float64))
    points = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.tensor([0, 0, 1, 2, 3])

    def d(i, j):
        return (points[i] - points[j]).norm()

    # anchor 0: positive 1 at 40 degrees, negatives at 10, 50, 90: 50 is the nearest farther one.
    # anchor 1: positive 0 at 40 degrees, negatives at 30, 10, 50: 50 degrees (sample 4).
    m = 1.0
    expected = ((d(0, 1) - d(0, 3) + m) + (d(1, 0) - d(1, 4) + m)) / 2
    loss = TripletMarginLoss(margin=m, triplets_per_anchor="semihard")
    torch.testing.assert_close(loss(points, labels), expected)
    # without sample 4, anchor 1 falls back to its farthest negative, sample 2 at 30 degrees
    expected = ((d(0, 1) - d(0, 3) + m) + (d(1, 0) - d(1, 2) + m)) / 2
    torch.testing.assert_close(loss(points[:4], labels[:4]), expected)


def test_semihard_passes_over_a_negative_as_far_as_the_positive():
    """On a line: of the negatives at -1 and 3, the first is as far from 0 as the positive at 1."""
    loss = TripletMarginLoss(margin=3.0, triplets_per_anchor="semihard", normalize=False)
    points = torch.tensor([[0.0], [1.0], [-1.0], [3.0]], dtype=torch.float64)
    expected = ((1 - 3 + 3.0) + (1 - 2 + 3.0)) / 2
    assert loss(points, torch.tensor([0, 0, 1, 2])).item() == pytest.approx(expected)


def test_semihard_leaves_out_anchors_without_negatives():
    loss = TripletMarginLoss(margin=1.0, triplets_per_anchor="semihard")
    points, labels = torch.eye(4)[:3], torch.zeros(3, dtype=torch.long)
    assert loss(points, labels) == 0
    assert loss(points, torch.tensor([0, 0, 1]), ref_emb=torch.eye(4)[1:], ref_labels=labels) == 0


def semihard_loop(case, margin):
    terms = []
    for i in range(len(case.y)):
        for p in case.P[i]:
            farther = [n for n in case.N[i] if case.d(i, n) > case.d(i, p)]
            if case.N[i]:
                n = min(farther, key=lambda n: case.d(i, n)) if farther else max(case.N[i], key=lambda n: case.d(i, n))
                terms.append((case.d(i, p) - case.d(i, n) + margin).clamp_min(0))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("situation", ["unit", "raw", "reference"])
def test_semihard_equals_its_rule(situation):
    loss = TripletMarginLoss(margin=0.1, triplets_per_anchor="semihard")
    assert_equals_loop(loss, lambda case: semihard_loop(case, 0.1), batch(situation))


def test_random_triplets_are_seeded_and_their_mean_is_near_that_of_all():
    case = batch("raw", labels=[0] * 6 + [1] * 6)
    sampled = TripletMarginLoss(margin=4.0, triplets_per_anchor=500)  # every triplet is active
    torch.manual_seed(3)
    first = sampled(case.x, case.y)
    torch.manual_seed(3)
    assert sampled(case.x, case.y) == first
    torch.testing.assert_close(first, loop(case, 4.0), rtol=0, atol=0.05)


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="power=3 must be 1 or 2"):
        TripletMarginLoss(power=3)
    with pytest.raises(ValueError, match="swap"):
        TripletMarginLoss(swap=True, triplets_per_anchor="semihard")
