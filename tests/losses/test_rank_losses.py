"""Losses of ranks by hand: perfect rankings, cold sigmoids, bounds, ties."""

import math

import pair_loops
import pytest
import torch
from loss_cases import Batch, assert_same, batch

from levelfield.losses import FastAPLoss, PNPLoss, RecallAtKLoss, ROADMAPLoss, SmoothAPLoss

# One anchor's cosines, of which the second and the fourth are positives.
COSINES = torch.tensor([[0.9, 0.8, 0.7, 0.6]], dtype=torch.float64)
POSITIVES = torch.tensor([[0.0, 1, 0, 1]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (SmoothAPLoss(1e-4), 1 - (1 / 2 + 2 / 4) / 2),
        (PNPLoss(anneal=1e-4, variant="Ds"), (math.log(2) + math.log(3)) / 2),  # one negative before the first, two
        # Recall among the 1, 2, 3, 4 and 5 nearest; a rank of just k counts half.
        *((RecallAtKLoss((k,), 1e-3, 1e-4), 1 - r) for k, r in [(1, 0), (2, 0.25), (3, 0.5), (4, 0.75), (5, 1)]),
    ],
)
def test_a_cold_sigmoid_gives_the_score_by_hand(loss, expected):
    assert loss.pair_loss(COSINES, POSITIVES, 1 - POSITIVES) == pytest.approx(expected, abs=1e-6)


def test_a_perfect_ranking_loses_nothing():
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(FastAPLoss()(points, torch.tensor([0, 0, 1, 1])), torch.tensor(0.0))


def test_distances_on_the_nodes_fall_on_one_node_each():
    """Axis vectors: squared distances 2 and 4 of 2 bins are the last two of three nodes."""
    points = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    labels = torch.tensor([0, 0, 1, 2])
    # anchors 0 and 1: their positive is at 4, both negatives at 2: precision 1/3 at the last node
    torch.testing.assert_close(FastAPLoss(2)(points, labels), torch.tensor(2 / 3))


def test_mixed_samples_stand_in_the_batch_with_mixtures_of_similarities():
    """Whose vectors are a u_i + (1 - a) u_j for each two of a class, a the draws in their order."""
    case = batch("raw", [7, 7, 7, 2, 2, 5], seed=2)
    loss = RecallAtKLoss((1, 2), 1.0, 0.1, similarity_mixup=True)
    torch.manual_seed(4)
    value = loss(case.x, case.y)
    torch.manual_seed(4)
    shares = torch.rand(4, 1, dtype=torch.float64).flatten()
    rows, labels = [case.u(i) for i in range(6)], case.y.tolist()
    for a, (i, j) in zip(shares, [(0, 1), (0, 2), (1, 2), (3, 4)], strict=True):
        rows.append(a * case.u(i) + (1 - a) * case.u(j))
        labels.append(labels[i])
    expected = pair_loops.recall_at_k(Batch(torch.stack(rows), torch.tensor(labels)), (1, 2), 1.0, 0.1, unit=False)
    assert_same(value, expected, case.x, value=1e-10, gradient=1e-9)
    for rest in ((tuple(torch.tensor([[0], [1], [3]])),), (None, case.x, case.y)):
        with pytest.raises(ValueError, match="takes no miner and no ref_emb"):
            loss(case.x, case.y, *rest)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [4, 4]])
def test_mixup_of_little_is_finite(labels):
    x = torch.randn(len(labels), 3, requires_grad=True)
    value = RecallAtKLoss(similarity_mixup=True)(x, torch.tensor(labels))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert (value == 0) == (len(set(labels)) == len(labels))


def test_duplicates_equal_roadmap_s_equation():
    """Exact cosines: points on a grid of quarters of a turn and of 60 degrees, several of a class alike."""
    half, high = 0.5, 0.75**0.5
    points = torch.tensor([[1, 0], [1, 0], [half, high], [1, 0], [half, high], [-1, 0.0]], dtype=torch.float64)
    case = batch("raw", [0, 0, 0, 1, 1, 1], dim=2)
    case.x = points
    cosines = points @ points.T
    case.s = lambda i, j: cosines[i, j]
    expected = float(pair_loops.roadmap(case, 0.02, 70.0, 0.08, 0.5))
    assert float(ROADMAPLoss(0.02, 70.0, 0.08)(case.x, case.y)) == pytest.approx(expected)
