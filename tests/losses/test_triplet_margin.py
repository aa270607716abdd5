"""Triplets: repeats, terms at the hinge, FaceNet's rule, and random ones."""

import pytest
import torch
from loss_cases import batch
from pair_loops import triplet_margin

from levelfield.losses import MarginLoss, TripletMarginLoss, triplets


@pytest.mark.parametrize(("name", "instead"), [("COMPARED", 2**16), ("COMPARED", 0), ("can_look", lambda _: False)])
def test_terms_at_the_hinge_do_not_count(name, instead, monkeypatch):
    """Axis vectors are all sqrt(2) apart: every triplet ties, and a margin of 0 leaves none active."""
    monkeypatch.setattr(triplets, name, instead)
    points, labels = torch.eye(6), torch.tensor([0, 0, 0, 1, 1, 1])
    assert TripletMarginLoss(margin=0.0)(points, labels) == 0
    torch.testing.assert_close(TripletMarginLoss(margin=0.25)(points, labels), torch.tensor(0.25))


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


@pytest.mark.parametrize("loss", [TripletMarginLoss, MarginLoss])
def test_random_triplets_are_seeded(loss):
    case, sampled, values = batch("raw"), loss(triplets_per_anchor=7), []
    for _ in range(2):
        torch.manual_seed(5)
        values.append(sampled(case.x, case.y))
    assert values[0] == values[1] != sampled(case.x, case.y)


def test_the_mean_of_random_triplets_is_near_that_of_all():
    case = batch("raw", labels=[0] * 6 + [1] * 6)
    value = TripletMarginLoss(margin=4.0, triplets_per_anchor=500)(case.x, case.y)  # every triplet is active
    torch.testing.assert_close(value, triplet_margin(case, 4.0), rtol=0, atol=0.05)
