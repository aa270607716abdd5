import pytest
import torch
from loss_cases import assert_equals_loop, assert_equals_peer, batch, sample_weights
from pytorch_metric_learning import losses as peers

from levelfield.losses import FastAPLoss


def loop(case, bins):
    ref_y = (case.y if case.ref is None else case.ref_y).tolist()
    losses = []
    weights = sample_weights(case)
    unit, other_unit = (t / t.norm(dim=1, keepdim=True) for t in (case.x, case.others))
    squares = (unit[:, None] - other_unit[None]).square().sum(2)
    for i in range(len(case.y)):
        others = [j for j in range(len(ref_y)) if case.ref is not None or j != i]
        positives = [j for j in others if ref_y[j] == int(case.y[i])]
        if not positives:
            continue
        cumulative = cumulative_positive = average = 0.0
        for k in range(bins + 1):
            share = {j: (1 - (squares[i, j] - 4 * k / bins).abs() * bins / 4).clamp_min(0) for j in others}
            h_positive = sum(share[j] for j in positives)
            cumulative = cumulative + sum(share.values())
            cumulative_positive = cumulative_positive + h_positive
            if cumulative > 0:
                average = average + h_positive * cumulative_positive / cumulative
        losses.append((1 - average / len(positives)) * weights[i])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("situation", ["unit", "raw", "triplets", "reference"])
@pytest.mark.parametrize("bins", [1, 10, 25])
def test_equals_the_equation(situation, bins):
    assert_equals_loop(FastAPLoss(bins), lambda case: loop(case, bins), batch(situation))


@pytest.mark.parametrize("bins", [10, 17])
def test_equals_pytorch_metric_learning(bins):
    case = batch("raw", [7, 7, 7, 2, 2, 2, 5, 5, 5, 5, 3, 3])  # its weights are misplaced where an anchor is dropped
    assert_equals_peer(FastAPLoss(bins), peers.FastAPLoss(bins), case)


def test_a_perfect_ranking_loses_nothing():
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    torch.testing.assert_close(FastAPLoss()(points, torch.tensor([0, 0, 1, 1])), torch.tensor(0.0))


def test_distances_on_the_nodes_fall_on_one_node_each():
    """Axis vectors: squared distances 2 and 4 of 2 bins are the last two of three nodes."""
    points = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    labels = torch.tensor([0, 0, 1, 2])
    # anchors 0 and 1: their positive is at 4, both negatives at 2: precision 1/3 at the last node
    torch.testing.assert_close(FastAPLoss(2)(points, labels), torch.tensor(2 / 3))
