from itertools import combinations

import pytest
import torch
from loss_cases import batch
from sklearn.metrics import normalized_mutual_info_score

from levelfield.losses import StructuredClusteringLoss


def distance(case, i, j):
    return case.d(i, j) if i != j else torch.zeros((), dtype=torch.float64)


def score(case, medoids, gamma):
    """F(S) + gamma (1 - NMI), and F(S) alone with its gradient."""
    N = len(case.y)
    which = [min(medoids, key=lambda j: float(distance(case, i, j).detach())) for i in range(N)]
    nmi = normalized_mutual_info_score(case.y.tolist(), which, average_method="geometric")
    facility = -sum(distance(case, i, which[i]) for i in range(N))
    return facility + gamma * (1 - nmi)


def truth(case):
    total = 0.0
    for c in set(case.y.tolist()):
        members = [i for i, y in enumerate(case.y.tolist()) if y == c]
        total = total + max(-sum(distance(case, i, j) for i in members) for j in members)
    return total


CASES = [([0, 0, 1, 1, 2, 2], 0), ([5, 5, 5, 1, 1, 1, 9], 1), ([0, 0, 0, 0, 3, 3, 3, 3], 2)]


@pytest.mark.parametrize(("labels", "seed"), CASES)
@pytest.mark.parametrize("gamma", [0.0, 1.0, 5.0])
def test_the_search_finds_a_set_no_better_than_the_best_and_the_loss_is_its_excess(labels, seed, gamma):
    case = batch("raw", labels, dim=3, seed=seed)
    best = max(float(score(case, s, gamma).detach()) for s in combinations(range(len(labels)), len(set(labels))))
    loss = StructuredClusteringLoss(gamma)
    unit = case.x.detach() / case.x.detach().norm(dim=1, keepdim=True)
    _, class_of = case.y.unique(return_inverse=True)
    medoids = loss.search(torch.cdist(unit, unit), class_of).tolist()
    assert len(set(medoids)) == len(set(labels))
    found = score(case, medoids, gamma)
    assert float(found.detach()) <= best + 1e-9
    assert float(found.detach()) >= best - 0.35 * abs(best)
    expected = (found - truth(case)).clamp_min(0)
    value = loss(case.x, case.y)
    assert value >= 0
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-8)
    ours = torch.autograd.grad(value, case.x)[0]
    theirs = torch.autograd.grad(expected, case.x)[0] if expected > 0 else torch.zeros_like(ours)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


def test_swapping_never_makes_the_score_worse():
    for seed in range(4):
        case = batch("raw", [c for c in range(5) for _ in range(4)], dim=4, seed=seed)
        unit = case.x.detach() / case.x.detach().norm(dim=1, keepdim=True)
        dist = torch.cdist(unit, unit)
        scores = []
        for rounds in (0, 1, 5):
            medoids = StructuredClusteringLoss(1.0, pam_iterations=rounds).search(dist, case.y)
            scores.append(float(score(case, medoids.tolist(), 1.0).detach()))
        assert scores == sorted(scores)


def test_a_clustering_beyond_doubt_loses_nothing():
    points = torch.eye(4)[[0, 0, 1, 1, 2, 2]] + 1e-3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert StructuredClusteringLoss(gamma=0.1)(points, torch.tensor([0, 0, 1, 1, 2, 2])) < 1e-6


def test_a_miner_is_refused():
    with pytest.raises(ValueError, match="neither a miner nor ref_emb"):
        StructuredClusteringLoss()(*batch("pairs").arguments())


def test_gamma_decays_every_so_many_training_steps_and_a_checkpoint_goes_on():
    """0.94 every 3 steps: after 7 steps gamma is 2 x 0.94^2; the loss is that of a constant gamma of this size."""
    case = batch("raw", [0, 0, 1, 1, 2, 2], dim=3)
    decaying = StructuredClusteringLoss(2.0, gamma_decay=0.94, decay_steps=3)
    plain = [StructuredClusteringLoss(2.0 * 0.94 ** (step // 3))(case.x, case.y) for step in range(8)]
    assert len({float(loss.detach()) for loss in plain}) == 3
    assert [decaying(case.x, case.y) for _ in range(7)] == plain[:7]
    resumed = StructuredClusteringLoss(2.0, gamma_decay=0.94, decay_steps=3)
    resumed.load_state_dict(decaying.state_dict())
    assert resumed(case.x, case.y) == plain[7]
    resumed.eval()
    assert resumed(case.x, case.y) == resumed(case.x, case.y)
    assert not StructuredClusteringLoss().state_dict()


@pytest.mark.parametrize("arguments", [{"gamma_decay": 0.0}, {"gamma_decay": 1.1}, {"decay_steps": 0}])
def test_a_decay_that_is_none_is_refused(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}=.* must"):
        StructuredClusteringLoss(**arguments)
